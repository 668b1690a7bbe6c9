"""One mount: memory that this node lends, under one generation, offered on every fabric the node serves.

A mount is never repaired. When its session ends, or the master no longer knows it, the whole mount is destroyed on
every fabric and fresh memory under a fresh generation takes its place, so that nothing that anyone still holds for the
old one can touch the new (promise P5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from pykvpool.fabric.base import Exported, FabricServer
from pykvpool.fabric.registry import export_over
from pykvpool.memory.copying import checksum
from pykvpool.model.ids import SegmentId
from pykvpool.model.objects import Extent
from pykvpool.runtime import Runtime


class Lent(Exported, Protocol):
    """Memory that can be given back: a `pykvpool.memory.segment.MemorySegment`, or a simulator's."""

    def close(self) -> None:
        """Harmless twice."""
        ...


class Mounted:
    """Memory, its endpoints, and the master's name for it once it has one."""

    def __init__(self, memory: Lent, servers: Sequence[FabricServer]) -> None:
        self.memory = memory
        self._servers = servers
        #: Given by the master's `Mounted` reply; None before.
        self.segment: SegmentId | None = None
        self.endpoints = export_over(servers, memory)

    async def fence(self, name: str, incarnation: int, ban: bool) -> None:
        """Returns when nothing that peer began can land here any more, over any fabric."""
        await asyncio.gather(
            *(server.fence(name, incarnation, self.memory.generation, ban) for server in self._servers)
        )

    async def hash(self, extents: Sequence[Extent], runtime: Runtime) -> list[int]:
        """xxh3-64 of each extent of this mount."""
        sums = []
        for extent in extents:
            piece = self.memory.view[extent.offset : extent.offset + extent.length]
            sums.append(await runtime.offload.run(checksum, [piece]))
            piece.release()
        return sums

    async def destroy(self) -> None:
        """End the generation on every fabric, then give the memory back."""
        await asyncio.gather(*(server.withdraw(self.memory.generation) for server in self._servers))
        self.memory.close()
