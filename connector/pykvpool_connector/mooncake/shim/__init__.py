"""A directory for PYTHONPATH: in it, `mooncake` is a package whose store is the pool's. See `command`."""
