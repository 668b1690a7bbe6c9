"""A scripted master and scripted fabrics, so that the client's own rules can be tested one by one."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from pykvpool.client.link import MasterLink
from pykvpool.client.types import ClientStatistics
from pykvpool.errors import PoolError
from pykvpool.fabric.base import Outcome, Read, Write
from pykvpool.memory.copying import checksum
from pykvpool.model.objects import Extent, SegmentDescriptor
from pykvpool.runtime import Runtime, ThreadOffload

SEGMENT = SegmentDescriptor(1, 99, "n0", 1 << 20, ("fake://n0",))
OTHER = SegmentDescriptor(2, 98, "n1", 1 << 20, ("fake://n1",))


@dataclass
class HandClock:
    """Time moves when the test says so."""

    ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.ms


@dataclass
class FakeSession:
    """Answers commands by type from `script`: a reply, an exception, or a callable that gives one."""

    script: dict[type, list]
    name: str = "client"
    epoch: int = 1
    session_id: int = 5
    incarnation: int = 77
    connected: bool = True
    sent: list = field(default_factory=list)
    #: None: not closed yet.
    said_goodbye: bool | None = None

    async def call(self, command, timeout_s: float):
        self.sent.append(command)
        replies = self.script.get(type(command))
        assert replies, f"nothing scripted for {command}"
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if callable(reply):
            reply = reply(command)
        if asyncio.iscoroutine(reply):
            reply = await reply
        if isinstance(reply, PoolError):
            raise reply
        return reply

    def of(self, kind: type) -> list:
        return [command for command in self.sent if isinstance(command, kind)]

    async def close(self, *, goodbye: bool = True) -> None:
        self.said_goodbye = goodbye


class FakeRouter:
    """Memory per generation; a test hooks `before` to fail, delay or corrupt an operation."""

    def __init__(self) -> None:
        self.memory = {99: bytearray(1 << 20), 98: bytearray(1 << 20)}
        self.before = None
        self.sum_seen = True
        self.doubted = ()

    async def _run(self, operation):
        if self.before is not None:
            outcome = self.before(operation)
            if asyncio.iscoroutine(outcome):
                outcome = await outcome
            if outcome is not None:
                return outcome
        memory = memoryview(self.memory[operation.segment.generation])
        position = operation.offset
        for piece in operation.pieces:
            part = memory[position : position + len(piece)]
            if isinstance(operation, Read):
                piece[:] = part
            else:
                part[:] = piece
            position += len(piece)
        seen = self.sum_seen and operation.want_checksum
        return Outcome(checksum=checksum(operation.pieces) if seen else None, scheme="fake")

    async def read(self, batch: list[Read], timeout_s: float) -> list[Outcome]:
        return [await self._run(operation) for operation in batch]

    async def write(self, batch: list[Write], timeout_s: float) -> list[Outcome]:
        return [await self._run(operation) for operation in batch]

    def doubts(self, segment):
        return segment in self.doubted

    async def map_view(self, segment, offset, length):
        return None

    async def close(self) -> None:
        pass


@dataclass
class FakeFabrics:
    router: FakeRouter


class Bench:
    """A link, a router and statistics around one script."""

    def __init__(self, script: dict[type, list]) -> None:
        self.clock = HandClock()
        self.session = FakeSession(script)
        self.link = MasterLink(self.session, Runtime(self.clock, random.Random(1), ThreadOffload(1)))
        self.link.learn([SEGMENT, OTHER])
        self.router = FakeRouter()
        self.fabrics = FakeFabrics(self.router)
        self.statistics = ClientStatistics()
        self.deadline_ms = self.clock.ms + 30_000

    async def end(self) -> None:
        """Let what was told in the background be sent."""
        await self.link.close()
        self.link.runtime.offload.close()


def extent(segment: SegmentDescriptor, offset: int, length: int) -> Extent:
    return Extent(segment.segment, offset, length)
