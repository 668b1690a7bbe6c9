"""How block bytes move. Read `base` (the contract) first, then the fabrics from the simplest on, then who picks one.

- `local`, `inproc`: one process; copies in offload threads. `exports` is the owner's bookkeeping.
- `handshake`: how a connection begins, on tcp and shm alike.
- `shm_wire`, `shm_server` (`shm_peers`), `shm_client` (`shm_session`, `shm_map`): one host; descriptors over a socket.
- `tcp_wire`, `tcp_socket` (`cursor`), `tcp_server`, `tcp_client` (`tcp_pool`, `tcp_exchange`): anywhere.
- `registry` builds fabrics by scheme; `router` sends every operation by the cheapest that works.
"""
