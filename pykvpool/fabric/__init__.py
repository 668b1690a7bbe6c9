"""How block bytes move. Start with `base` (the contract), then `inproc`, `shm`, `tcp`."""
