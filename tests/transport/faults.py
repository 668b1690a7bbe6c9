"""A transport whose connections tests can cut, deafen and watch: inproc underneath, the fault on top."""

from __future__ import annotations

from collections.abc import Callable

from pykvpool.transport.base import Listener, OnStream, Stream
from pykvpool.transport.inproc import InprocTransport
from pykvpool.transport.registry import TransportRegistry, standard_transports


class FaultyStream:
    """A stream that can stop hearing: what arrives is then lost."""

    def __init__(self, inner: Stream, on_send: Callable[[bytes], None]) -> None:
        self.inner = inner
        self.deaf = False
        self._on_send = on_send

    @property
    def peer(self) -> str:
        return self.inner.peer

    @property
    def buffered_bytes(self) -> int:
        return self.inner.buffered_bytes

    def allow(self, limit_bytes: int) -> None:
        self.inner.allow(limit_bytes)

    def send(self, frame: bytes) -> None:
        self._on_send(frame)
        self.inner.send(frame)

    async def drain(self) -> None:
        await self.inner.drain()

    async def recv(self) -> bytes | None:
        while (frame := await self.inner.recv()) is not None:
            if not self.deaf:
                return frame
        return None

    def close(self) -> None:
        self.inner.close()

    def abort(self) -> None:
        self.inner.abort()

    async def wait_closed(self) -> None:
        await self.inner.wait_closed()


class FaultyTransport:
    """``faulty://name``. `near` are the ends that connected, `far` those that were accepted, in order."""

    def __init__(self) -> None:
        self.inproc = InprocTransport()
        self.near: list[FaultyStream] = []
        self.far: list[FaultyStream] = []
        #: Called with each frame that a near or far end sends.
        self.on_near_send: Callable[[bytes], None] = lambda frame: None
        self.on_far_send: Callable[[bytes], None] = lambda frame: None

    def check(self, rest: str) -> None:
        self.inproc.check(rest)

    async def connect(self, rest: str) -> Stream:
        stream = FaultyStream(await self.inproc.connect(rest), lambda frame: self.on_near_send(frame))
        self.near.append(stream)
        return stream

    async def listen(self, rest: str, on_stream: OnStream) -> Listener:
        def accept(stream: Stream) -> None:
            faulty = FaultyStream(stream, lambda frame: self.on_far_send(frame))
            self.far.append(faulty)
            on_stream(faulty)

        listener = await self.inproc.listen(rest, accept)
        listener.address = listener.address.replace("inproc://", "faulty://")
        return listener

    def cut(self) -> None:
        """Break the newest connection."""
        self.near[-1].abort()


def faulty_transports() -> tuple[TransportRegistry, FaultyTransport]:
    registry, faulty = standard_transports(), FaultyTransport()
    registry.register("faulty", faulty)
    return registry, faulty
