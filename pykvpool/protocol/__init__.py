"""The wire of the control plane, without I/O. Read `frames`, then `messages`, `codec`, `handshake`; docs/wire.md tells
the same for people who write a client in another language."""
