"""One owner and its peers on fake cards, for the scenarios of the rdma fabric."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from pykvpool.fabric.base import Outcome, Peer, Read, Write
from pykvpool.fabric.rdma.client import RdmaClient
from pykvpool.fabric.rdma.link import Link
from pykvpool.fabric.rdma.server import RdmaServer
from pykvpool.fabric.rdma.settings import RdmaSettings
from pykvpool.memory.buffers import BufferRegistry
from pykvpool.memory.segment import MemorySegment
from pykvpool.model.ids import NodeName, PutId, SegmentId
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import real_runtime
from tests.fabric.fake_rnic import FakeDevice
from tests.fabric.fake_verbs import FakeVerbs

TIMEOUT_S = 20.0
SEGMENT_BYTES = 16 * 1024 * 1024
MIB = 1024 * 1024


class Stage:
    """`near` are the peer's cards, `far` the owner's; all are on one network."""

    def __init__(self, verbs: FakeVerbs, near: tuple[str, ...], far: tuple[str, ...], queue_pairs: int) -> None:
        self.verbs = verbs
        self.near = [verbs[name] for name in near]
        self.far = [verbs[name] for name in far]
        self.runtime = real_runtime()
        self.near_settings = RdmaSettings(near, queue_pairs, verbs=verbs)
        self.server = RdmaServer(self.runtime, settings=RdmaSettings(far, queue_pairs, verbs=verbs))
        self.buffers = BufferRegistry()
        self.memory: MemorySegment
        self.segment: SegmentDescriptor
        self.client: RdmaClient
        self.stack = contextlib.AsyncExitStack()
        self._mounts = 0

    async def open(self, size_bytes: int = SEGMENT_BYTES) -> None:
        self.stack.callback(self.runtime.offload.close)
        await self.server.start()
        self.stack.push_async_callback(self.server.close)
        self.memory, self.segment = self.mount(size_bytes)
        self.client = self.another(Peer("peer", 1))

    def mount(self, size_bytes: int = SEGMENT_BYTES) -> tuple[MemorySegment, SegmentDescriptor]:
        self._mounts += 1
        memory = MemorySegment(size_bytes, self.runtime)
        self.stack.callback(memory.close)
        endpoint = self.server.export(memory)
        return memory, SegmentDescriptor(
            SegmentId(self._mounts), memory.generation, NodeName("owner"), memory.size_bytes, (endpoint,)
        )

    def another(self, peer: Peer, **changes: Any) -> RdmaClient:
        client = RdmaClient(peer, self.runtime, settings=self.near_settings, buffers=self.buffers, **changes)
        self.stack.push_async_callback(client.close)
        return client

    async def connected(self) -> Link:
        """The client's link to the mount, with all of its lanes."""
        await self.read(0, 1)
        (link,) = self.client._links.values()
        await until(lambda: not link.busy)
        return link

    async def write(self, offset: int, data: bytes | bytearray, **changes: Any) -> Outcome:
        (outcome,) = await self.client.write([self.to_write(offset, data, **changes)], TIMEOUT_S)
        return outcome

    async def read(self, offset: int, length: int) -> bytes | Outcome:
        """The bytes, or how it failed."""
        into = bytearray(length)
        (outcome,) = await self.client.read([self.to_read(offset, into)], TIMEOUT_S)
        return outcome if outcome.error is not None else bytes(into)

    def to_write(self, offset: int, data: bytes | bytearray, put_id: int = 1, want_checksum: bool = True) -> Write:
        return Write(self.segment, offset, len(data), [memoryview(data)], PutId(put_id), want_checksum)

    def to_read(self, offset: int, into: bytearray) -> Read:
        return Read(self.segment, offset, len(into), [memoryview(into)])

    @property
    def cards(self) -> list[FakeDevice]:
        return [*self.near, *(card for card in self.far if card not in self.near)]

    def hold(self) -> None:
        for card in self.near:
            card.hold()

    def release(self) -> None:
        for card in self.near:
            card.release()

    @property
    def under_way(self) -> int:
        """Requests that cards have taken and not carried out."""
        return sum(card.under_way for card in self.near)


@contextlib.asynccontextmanager
async def stage(
    near: tuple[str, ...] = ("near0", "near1"),
    far: tuple[str, ...] = ("far0", "far1"),
    *,
    queue_pairs: int = 1,
    size_bytes: int = SEGMENT_BYTES,
    prepare: Callable[[FakeVerbs], None] | None = None,
) -> AsyncIterator[Stage]:
    """Opened, closed at the end; then nothing of it is left on any card."""
    verbs = FakeVerbs(*dict.fromkeys((*near, *far)))
    if prepare is not None:
        prepare(verbs)
    made = Stage(verbs, near, far, queue_pairs)
    async with made.stack:
        await made.open(size_bytes)
        yield made
    for card in made.cards:
        assert not card.pairs, f"{card.name} has queue pairs left"
        assert not card.regions, f"{card.name} has registrations left"
        assert not card.contexts, f"{card.name} is open still"


async def until(true: Callable[[], object]) -> None:
    """Let the loop go on until something holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not true():
            await asyncio.sleep(0)


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
