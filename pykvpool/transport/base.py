"""What a control connection is: a stream of whole frames between two ends, in order, with bounds on both sides.

Transports (tcp, unix, inproc; a simulator's own) make streams; nobody above asks which. A stream moves bytes: what is
in a frame is `pykvpool.protocol`'s business. Every transport keeps these promises, and tests/transport/test_streams.py
checks them on each:

- `send` never waits: it buffers, up to `SEND_LIMIT_BYTES`. What it took is sent before a `close`, unless the peer does
  not read.
- `recv` gives whole frames in order; frames that came before an end or a failure are given first.
- Nothing is read ahead without bound: past `RECV_HIGH_BYTES` of frames that nobody has taken, the peer is held up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pykvpool.protocol.frames import MAX_FRAME_BYTES

#: Above this `drain` waits and a polite sender pauses: enough to keep a 10 Gbit/s wire busy for a millisecond.
SEND_HIGH_BYTES = 1 << 20
#: Above this `send` refuses: the peer is not reading. Room for the largest frame on top of what a polite sender leaves.
SEND_LIMIT_BYTES = MAX_FRAME_BYTES + 8 * SEND_HIGH_BYTES
#: Frames that arrived and were not taken; above this reading pauses. One frame may be larger.
RECV_HIGH_BYTES = 1 << 20
#: A closed stream whose peer does not take the rest is cut after this: nobody waits for it any more.
CLOSE_LINGER_S = 1.0


class Stream(Protocol):
    """One end of a control connection."""

    #: Who is at the other end, for people: ``127.0.0.1:50412``, ``pid 4711``.
    peer: str

    @property
    def buffered_bytes(self) -> int:
        """Bytes sent that the transport still holds."""
        ...

    def allow(self, limit_bytes: int) -> None:
        """Accept frames of up to `limit_bytes` from now on (at first: `MAX_HANDSHAKE_FRAME_BYTES`)."""
        ...

    def send(self, frame: bytes) -> None:
        """Buffer one frame. Raises `Overloaded` over `SEND_LIMIT_BYTES` (nothing was taken), `LimitExceeded` for a
        frame that no peer would accept, `Closed` after the end."""
        ...

    async def drain(self) -> None:
        """Returns when less than `SEND_HIGH_BYTES` are buffered, or the stream has ended."""
        ...

    async def recv(self) -> bytes | None:
        """The next frame; None when the peer closed (or this end did). Raises `ProtocolError` where what arrives is no
        frame, `Unavailable` where the connection broke. One task at a time."""
        ...

    def close(self) -> None:
        """Send what is buffered, then end. Harmless twice."""
        ...

    def abort(self) -> None:
        """End at once; what is buffered is lost. Harmless twice."""
        ...

    async def wait_closed(self) -> None:
        """Returns when the connection is gone."""
        ...


class Listener(Protocol):
    """Where connections come in."""

    #: The address to connect to, with the real port where any was asked for.
    address: str

    async def close(self) -> None:
        """No new connections; those that exist go on. Harmless twice."""
        ...


#: Called on the loop for each new connection; must not raise.
OnStream = Callable[[Stream], None]


class Transport(Protocol):
    """Makes streams for one URI scheme. `rest` is the address without ``scheme://``."""

    def check(self, rest: str) -> None:
        """Raises `InvalidArgument` for an address that can never work, naming what is allowed."""
        ...

    async def connect(self, rest: str) -> Stream:
        """Raises `Unavailable` with the reason (refused, no route, no such host, ...). The caller sets the deadline."""
        ...

    async def listen(self, rest: str, on_stream: OnStream) -> Listener:
        """Raises `ConfigError` where the address cannot be had, naming who holds it or the flag to use."""
        ...
