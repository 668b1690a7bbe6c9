"""The decisions of the pool, without I/O, clock or randomness.

Read `master` (what a step is); then the durable side, `state` with `segments`, `allocator`, `puts` and `catalog`; then
what ends things, `leases`, `fences`, `liveness` and `loss`; then how room is found, `waiting`, `placement` and
`eviction`. `handlers` map each command to these, and `validate` lists every invariant.
"""
