"""Peers that speak below `ControlSession`: single frames, or plain bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack

from pykvpool.model.replies import Welcome
from pykvpool.protocol.codec import decode_from_master, decode_handshake
from pykvpool.protocol.frames import HEADER, MAX_FRAME_BYTES
from pykvpool.protocol.handshake import ClientHandshake
from pykvpool.protocol.identity import Identity
from pykvpool.protocol.messages import Farewell
from pykvpool.transport.base import Stream
from tests.transport.stage import Stage


class RawPeer:
    """A stream past the handshake; sends anything, receives whole messages."""

    def __init__(self, stream: Stream, welcome: Welcome) -> None:
        self.stream = stream
        self.welcome = welcome

    @classmethod
    async def enter(cls, stage: Stage, name: str = "raw", incarnation: int = 5) -> RawPeer:
        stream = await stage.transports.connect(stage.address)
        handshake = ClientHandshake(Identity(name, "client", incarnation), b"n" * 16)
        stream.send(handshake.start())
        while handshake.welcome is None:
            frame = await stream.recv()
            assert frame is not None
            answer = handshake.receive(frame)
            if answer is not None:
                stream.send(answer)
        stream.allow(MAX_FRAME_BYTES)
        peer = cls(stream, handshake.welcome)
        stage.stack.push_async_callback(peer.leave)
        return peer

    def send(self, message: Any) -> None:
        self.stream.send(msgpack.packb(message))

    async def receive(self) -> Any:
        frame = await self.stream.recv()
        return None if frame is None else decode_from_master(frame)

    async def leave(self) -> None:
        self.stream.abort()
        await self.stream.wait_closed()


async def farewell_after(stage: Stage, data: bytes, eof: bool = False) -> Farewell | None:
    """Sends plain bytes to a tcp master and returns its farewell (None: it just closed)."""
    host, _, port = stage.address.removeprefix("tcp://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        if eof:
            writer.write_eof()
        received = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    last = None
    while received:
        (size,) = HEADER.unpack_from(received)
        last = decode_handshake(received[HEADER.size : HEADER.size + size])
        received = received[HEADER.size + size :]
    return last if isinstance(last, Farewell) else None
