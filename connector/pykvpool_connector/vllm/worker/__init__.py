"""The worker's side of the connector: one rank's tensors, and the jobs that move their blocks.

`tensors` says where the bytes of a block lie, `jobs` turns the scheduler's orders into jobs of the pool's port and what
came of them into reports, `side` is what the connector calls in every engine step.
"""
