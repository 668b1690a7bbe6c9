"""The decisions of the pool, without I/O, clock or randomness. Start with `master`."""
