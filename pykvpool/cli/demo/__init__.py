"""`pykvpool demo`: the same agent sessions with and without the pool, on real processes, every byte checked.

Read in this order: `turns` (what an agent asks of an engine), `workload` and `traces` (where turns come from),
`blocks` (bytes that can be recognised), `engine_cache` and `engine` (a pretended engine), `driver` (the two passes),
`report`.
"""
