"""A pair of connected streams on any transport, for tests that run on all of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from pykvpool.transport.base import Listener, Stream
from pykvpool.transport.registry import TransportRegistry, standard_transports

SCHEMES = ("tcp", "tcp6", "unix", "inproc")


def listen_address(scheme: str, directory: Path) -> str:
    return {
        "tcp": "tcp://127.0.0.1:0",
        "tcp6": "tcp://[::1]:0",
        "unix": f"unix://{directory}/control.sock",
        "inproc": "inproc://",
    }[scheme]


@dataclass
class Place:
    """A listener; `pair` makes connections to it. Closes everything that it made."""

    address: str
    transports: TransportRegistry = field(default_factory=standard_transports)

    async def __aenter__(self) -> Place:
        self.accepted: asyncio.Queue[Stream] = asyncio.Queue()
        self.streams: list[Stream] = []
        self.listener: Listener = await self.transports.listen(self.address, self.accepted.put_nowait)
        return self

    async def pair(self) -> tuple[Stream, Stream]:
        near = await self.transports.connect(self.listener.address)
        far = await self.accepted.get()
        self.streams += (near, far)
        return near, far

    async def __aexit__(self, *error: object) -> None:
        await self.listener.close()
        for stream in self.streams:
            stream.abort()
        for stream in self.streams:
            await stream.wait_closed()
