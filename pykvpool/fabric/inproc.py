"""The fabric within one process: bytes are copied, by offload threads, between the caller's pieces and the segment.

Server and client meet in an `InprocRegistry` (one for the process unless a test injects its own). Memory is never
shared with a caller, but for explicit read-only views; so what works here works between processes. Fencing is exact:
copies of the peer are stopped and waited for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pykvpool.errors import PoolError, Refused, Unavailable
from pykvpool.fabric.addresses import endpoint_of
from pykvpool.fabric.base import Exported, Outcome, Peer, Read, Write
from pykvpool.fabric.exports import Export, ExportTable, gone
from pykvpool.fabric.local import InFlight, LocalMemory, LocalMover
from pykvpool.model.ids import Generation
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import Runtime

SCHEME = "inproc"
COST = 0


class InprocRegistry:
    """Which server of this process exports a generation."""

    def __init__(self) -> None:
        self._servers: dict[Generation, InprocServer] = {}

    @property
    def prefix(self) -> str:
        """How endpoints of this process begin: a forked child must not take its copy of this for its parent's."""
        return f"{SCHEME}://{os.getpid()}/"

    def endpoint(self, generation: Generation) -> str:
        return f"{self.prefix}{generation:x}"

    def add(self, generation: Generation, server: InprocServer) -> None:
        self._servers[generation] = server

    def remove(self, generation: Generation) -> None:
        self._servers.pop(generation, None)

    def find(self, generation: Generation) -> InprocServer | None:
        return self._servers.get(generation)


#: The registry of this process.
PROCESS_REGISTRY = InprocRegistry()


class InprocServer:
    """Offers mounts to clients of this process."""

    scheme = SCHEME
    #: Asked of nobody: a client of this process has found the node through its master.
    cluster = ""

    def __init__(self, registry: InprocRegistry = PROCESS_REGISTRY) -> None:
        self._registry = registry
        self._table = ExportTable()
        self._in_flight = InFlight()

    async def start(self) -> None:
        """Nothing to listen on."""

    def export(self, memory: Exported) -> str:
        self._table.add(memory)
        self._registry.add(memory.generation, self)
        return self._registry.endpoint(memory.generation)

    async def withdraw(self, generation: Generation) -> None:
        self._registry.remove(generation)
        if self._table.remove(generation) is not None:
            await self._in_flight.end(gone(generation), lambda transfer: transfer.generation == generation)

    async def fence(self, name: str, incarnation: int, generation: Generation, ban: bool) -> None:
        if ban:
            self._table.ban(name, incarnation)
        await self._in_flight.end(
            Refused(f"the session of {name!r} was fenced"),
            lambda transfer: transfer.peer.name == name and transfer.peer.incarnation == incarnation,
        )

    async def close(self) -> None:
        for generation in self._table.generations():
            await self.withdraw(generation)

    def attach(self, peer: Peer, generation: Generation) -> LocalMemory:
        """The memory as `peer` may use it. Raises `SegmentGone`."""
        return _Attached(self._table, self._in_flight, self._table.find(generation), peer)


class _Attached:
    """One peer's access to one mount."""

    def __init__(self, table: ExportTable, in_flight: InFlight, export: Export, peer: Peer) -> None:
        self._table = table
        self._export = export
        self._peer = peer
        self.in_flight = in_flight

    @property
    def view(self) -> memoryview:
        return self._export.memory.view

    def refuse(self, operation: Read | Write) -> PoolError | None:
        if isinstance(operation, Write):
            return self._export.refuse_write(self._peer, operation.offset, operation.length, operation.put_id)
        return self._export.refuse_range(operation.offset, operation.length)

    def check(self) -> None:
        self._table.find(self._export.memory.generation)
        if self._table.is_banned(self._peer):
            raise Refused(f"the session of {self._peer.name!r} is over")


class InprocClient:
    """Reads and writes mounts that a server of this process exports."""

    scheme = SCHEME
    cost = COST

    def __init__(self, peer: Peer, runtime: Runtime, registry: InprocRegistry = PROCESS_REGISTRY) -> None:
        self._peer = peer
        self._registry = registry
        self._mover = LocalMover(SCHEME, peer, runtime.offload)

    def reaches(self, segment: SegmentDescriptor) -> str | None:
        endpoint = endpoint_of(segment.endpoints, SCHEME)
        here = endpoint == self._registry.endpoint(segment.generation)
        return endpoint if here and self._registry.find(segment.generation) is not None else None

    async def read(self, batch: Sequence[Read], timeout_s: float) -> list[Outcome]:
        return await self._mover.move(batch, timeout_s, self._open)

    async def write(self, batch: Sequence[Write], timeout_s: float) -> list[Outcome]:
        return await self._mover.move(batch, timeout_s, self._open)

    async def map_view(self, segment: SegmentDescriptor, offset: int, length: int) -> memoryview | None:
        """A read-only view of the segment itself, no copy; None where it is not in this process.

        The lease vouches for the bytes, not the view. Raises `SegmentGone`, `InvalidArgument` (bounds).
        """
        if self.reaches(segment) is None:
            return None
        return self._mover.view(await self._open(segment), segment, offset, length)

    async def close(self) -> None:
        await self._mover.close()

    async def _open(self, segment: SegmentDescriptor) -> LocalMemory:
        if not (endpoint_of(segment.endpoints, SCHEME) or "").startswith(self._registry.prefix):
            raise Unavailable(f"segment {segment.segment} is not in this process")
        server = self._registry.find(segment.generation)
        if server is None:
            raise gone(segment.generation)
        return server.attach(self._peer, segment.generation)
