"""Control connections. Read `base` (what a stream is), `address` and `registry`, then one transport (`inproc` is the
shortest), then `control`: the session that clients and nodes hold with the master."""
