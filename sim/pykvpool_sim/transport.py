"""``sim://host:port``: control connections over the simulated network, by the contract of `pykvpool.transport.base`.

Each host has a `SimTransport` of its own, because an address says where to go but not where from. Register it in the
registry that the host's shells are given::

    registry = TransportRegistry()
    registry.register("sim", SimTransport(host))

Frames are bytes and are really sent: sizes count towards bandwidth, limits and back-pressure as on a socket.
"""

from __future__ import annotations

import asyncio

from pykvpool.errors import Closed, InvalidArgument, Overloaded, PoolError, ProtocolError
from pykvpool.protocol.frames import MAX_HANDSHAKE_FRAME_BYTES, frame_header
from pykvpool.transport.base import SEND_HIGH_BYTES, SEND_LIMIT_BYTES, Listener, OnStream, Stream
from pykvpool.transport.inbox import Inbox
from pykvpool_sim.host import Host
from pykvpool_sim.network import Listening
from pykvpool_sim.pipes import End

_MAX_PORT = 65_535


class SimTransport:
    """See `pykvpool.transport.base.Transport`."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def check(self, rest: str) -> None:
        parse(rest)

    async def connect(self, rest: str) -> Stream:
        target, port = parse(rest)
        end = await self._host.world.network.connect(self._host, target, port)
        return SimStream(end, f"{target}:{port}")

    async def listen(self, rest: str, on_stream: OnStream) -> Listener:
        """The host of the address is this one's name, or empty."""
        name, port = parse(rest, default_host=self._host.name)
        if name != self._host.name:
            raise InvalidArgument(f"address sim://{rest}: only {self._host.name} can listen here")

        def on_connect(end: End) -> None:
            on_stream(SimStream(end, end.peer))

        return SimListener(self._host.world.network.listen(self._host, port, on_connect))


def parse(rest: str, default_host: str = "") -> tuple[str, int]:
    """``host:port`` in two. Raises `InvalidArgument`."""
    name, colon, text = rest.rpartition(":")
    name = name or default_host
    if not colon or not name or not (text.isascii() and text.isdigit()) or int(text) > _MAX_PORT:
        raise InvalidArgument(f"address sim://{rest}: write sim://host:port, with a port from 0 to {_MAX_PORT}")
    return name, int(text)


class SimListener:
    """See `pykvpool.transport.base.Listener`."""

    def __init__(self, listening: Listening) -> None:
        self.address = f"sim://{listening.host}:{listening.port}"
        self._listening = listening

    async def close(self) -> None:
        self._listening.closed = True


class SimStream:
    """See `pykvpool.transport.base.Stream`; it is also the `Receiver` of its end."""

    def __init__(self, end: End, peer: str) -> None:
        self.peer = f"sim://{peer}"
        self._end = end
        self._limit_bytes = MAX_HANDSHAKE_FRAME_BYTES
        self._inbox = Inbox(self._hold, self._resume)
        #: The inbox asked the sender to wait.
        self._holding = False
        #: Cleared while too much is buffered.
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = asyncio.Event()
        end.attach(self)

    # -- Stream --------------------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        return self._end.unsent_bytes

    def allow(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes

    def send(self, frame: bytes) -> None:
        if self._gone.is_set():
            raise Closed(f"the connection to {self.peer} is closed")
        frame_header(len(frame))
        if self.buffered_bytes + len(frame) > SEND_LIMIT_BYTES:
            raise Overloaded(f"{self.peer} does not read: {self.buffered_bytes:,} bytes wait to be sent")
        self._end.send(bytes(frame))
        if self.buffered_bytes > SEND_HIGH_BYTES:
            self._writable.clear()

    async def drain(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()

    async def recv(self) -> bytes | None:
        return await self._inbox.get()

    def close(self) -> None:
        self._end.close()
        self._leave()

    def abort(self) -> None:
        self._end.abort()
        self._leave()

    async def wait_closed(self) -> None:
        await self._gone.wait()

    # -- Receiver ------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        return self._holding

    def arrived(self, frame: bytes) -> None:
        if len(frame) <= self._limit_bytes:
            self._inbox.put(frame)
            return
        self._inbox.end(
            ProtocolError(
                f"the peer sends a frame of {len(frame):,} bytes, over the limit of {self._limit_bytes:,}",
                size_bytes=len(frame),
                limit_bytes=self._limit_bytes,
            )
        )

    def ended(self, failure: PoolError | None) -> None:
        self._inbox.end(failure)
        self._gone.set()
        self._writable.set()

    def progressed(self) -> None:
        if self.buffered_bytes <= SEND_HIGH_BYTES:
            self._writable.set()

    # -- how -----------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        self._inbox.end()
        self._inbox.discard()
        self._gone.set()
        self._writable.set()

    def _hold(self) -> None:
        self._holding = True

    def _resume(self) -> None:
        self._holding = False
        self._end.room_again()
