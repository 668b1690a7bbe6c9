"""Host memory: segments that a node lends, buffers that a user brings, and copies that leave the loop free.

Read `segment` (what a node exports), `buffers` (how user values become pieces), `copying` (moving bytes).
"""
