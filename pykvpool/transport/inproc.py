"""``inproc://name``: a master and its peers in one process and on one event loop.

Frames are bytes here too, really encoded: nothing is shared but immutable bytes, so a message that would not survive a
wire does not survive here either. Delivery is a later turn of the loop, never a call into the other end.
"""

from __future__ import annotations

import asyncio
import itertools

from pykvpool.errors import Closed, ConfigError, Overloaded, ProtocolError, Unavailable
from pykvpool.protocol.frames import MAX_HANDSHAKE_FRAME_BYTES, frame_header
from pykvpool.transport.base import SEND_HIGH_BYTES, SEND_LIMIT_BYTES, Listener, OnStream, Stream
from pykvpool.transport.inbox import Inbox


class InprocTransport:
    """See `pykvpool.transport.base.Transport`. Names belong to one instance; ``inproc://`` alone gets a fresh name."""

    def __init__(self) -> None:
        self._listeners: dict[str, InprocListener] = {}
        self._fresh = itertools.count(1)

    def check(self, rest: str) -> None:
        """Every name will do."""

    async def connect(self, rest: str) -> Stream:
        listener = self._listeners.get(rest)
        if listener is None:
            raise Unavailable(f"nothing in this process listens on inproc://{rest}")
        if listener.loop is not asyncio.get_running_loop():
            raise Unavailable("it belongs to another event loop of this process: use unix:// or tcp:// across loops")
        near, far = InprocStream(rest), InprocStream(rest)
        near.other, far.other = far, near
        listener.on_stream(far)
        return near

    async def listen(self, rest: str, on_stream: OnStream) -> Listener:
        name = rest or f"{next(self._fresh)}"
        if name in self._listeners:
            raise ConfigError(f"cannot listen on inproc://{name}: taken in this process; choose another with --listen")
        listener = InprocListener(self._listeners, name, on_stream)
        self._listeners[name] = listener
        return listener


class InprocListener:
    """See `pykvpool.transport.base.Listener`."""

    def __init__(self, listeners: dict[str, InprocListener], name: str, on_stream: OnStream) -> None:
        self.address = f"inproc://{name}"
        self.loop = asyncio.get_running_loop()
        self.on_stream = on_stream
        self._listeners = listeners
        self._name = name

    async def close(self) -> None:
        if self._listeners.get(self._name) is self:
            del self._listeners[self._name]


class InprocStream:
    """One end; `other` is the other."""

    def __init__(self, name: str) -> None:
        self.peer = f"inproc://{name}"
        self.other: InprocStream = self
        self._limit_bytes = MAX_HANDSHAKE_FRAME_BYTES
        self._inbox = Inbox(self._nothing_to_tell, self._room_again)
        #: Frames on their way to the other end, in this turn of the loop.
        self._in_flight_bytes = 0
        #: Cleared while the other end holds too much.
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = asyncio.Event()

    @property
    def buffered_bytes(self) -> int:
        return self._in_flight_bytes + self.other._inbox.waiting_bytes

    def allow(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes

    def send(self, frame: bytes) -> None:
        if self._gone.is_set():
            raise Closed(f"the connection to {self.peer} is closed")
        frame_header(len(frame))
        if self.buffered_bytes + len(frame) > SEND_LIMIT_BYTES:
            raise Overloaded(f"{self.peer} does not read: {self.buffered_bytes:,} bytes wait to be sent")
        self._in_flight_bytes += len(frame)
        if self.buffered_bytes > SEND_HIGH_BYTES:
            self._writable.clear()
        asyncio.get_running_loop().call_soon(self._arrive, frame)

    async def drain(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()

    async def recv(self) -> bytes | None:
        return await self._inbox.get()

    def close(self) -> None:
        if not self._gone.is_set():
            self._end_here()
            # Behind the frames already sent, as on a socket.
            asyncio.get_running_loop().call_soon(self.other._end_there)

    def abort(self) -> None:
        self.close()

    async def wait_closed(self) -> None:
        await self._gone.wait()

    def _arrive(self, frame: bytes) -> None:
        """At the other end."""
        self._in_flight_bytes -= len(frame)
        there = self.other
        if len(frame) > there._limit_bytes:
            there._inbox.end(
                ProtocolError(
                    f"the peer sends a frame of {len(frame):,} bytes, over the limit of {there._limit_bytes:,}",
                    size_bytes=len(frame),
                    limit_bytes=there._limit_bytes,
                )
            )
        else:
            there._inbox.put(frame)
        self._may_write()

    def _end_here(self) -> None:
        self._inbox.end()
        self._inbox.discard()
        self._gone.set()
        self._writable.set()

    def _end_there(self) -> None:
        """The other end closed: what it sent can still be read."""
        self._inbox.end()
        self._gone.set()
        self._writable.set()

    def _nothing_to_tell(self) -> None:
        """Back-pressure is seen by the sender in `buffered_bytes`."""

    def _room_again(self) -> None:
        self.other._may_write()

    def _may_write(self) -> None:
        if self.buffered_bytes <= SEND_HIGH_BYTES:
            self._writable.set()
