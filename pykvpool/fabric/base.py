"""The contract of every fabric: how block bytes move.

All fabrics are one-sided, like RDMA. An owner *exports* a region (one mount of one segment) and gets an endpoint
address; a peer that knows the `SegmentDescriptor` reads and writes ranges of it in batches with scatter/gather. Two
rules hold on every fabric, and the conformance suite (tests/fabric/conformance.py) checks them by address:

- **Drained**: `read` and `write` return, or raise, only when nothing can touch the caller's local buffers any more,
  also when they are cancelled or run past their deadline. Buffers may be reused the moment the call is over.
- **Settled**: a result says whether anything of the operation may still land in remote memory. A write whose
  connection broke half way is not settled: its bytes may be under way. The caller then names it `uncertain` to the
  master.

A failed operation is a result, not an exception: one bad replica never hides the outcome of the rest of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pykvpool.errors import PoolError
from pykvpool.memory.device import Piece
from pykvpool.model.ids import Generation, PutId
from pykvpool.model.objects import SegmentDescriptor


@dataclass(frozen=True, slots=True)
class Peer:
    """Who moves bytes: the session's name and incarnation, as the master knows them (fencing goes by these)."""

    name: str
    incarnation: int
    #: A reader gets read-only maps and connections.
    writable: bool = True


@dataclass(slots=True)
class Read:
    """Read `length` bytes at `offset` of a segment into local pieces, in order."""

    segment: SegmentDescriptor
    offset: int
    length: int
    #: Writable, C-contiguous, format "B"; their lengths add up to `length`.
    pieces: Sequence[memoryview]
    #: Ask for the checksum of the bytes on their way, where the fabric's CPU sees them.
    want_checksum: bool = True
    #: In place of `pieces`, where some of them are GPU memory. Only a `DeviceFabric` is given such an operation, if it
    #: names no obstacle; for all others it is staged first (`pykvpool.fabric.device_mover`).
    device: Sequence[Piece] = ()


@dataclass(slots=True)
class Write:
    """Write local pieces, in order, to `length` bytes at `offset` of a segment."""

    segment: SegmentDescriptor
    offset: int
    length: int
    pieces: Sequence[memoryview]
    #: The put that owns the extent: an owner refuses one that is older than what it last saw there.
    put_id: PutId
    want_checksum: bool = True
    #: As for `Read`.
    device: Sequence[Piece] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one operation ended."""

    error: PoolError | None = None
    #: xxh3-64 of the moved bytes in order; None where it was not asked for or no CPU saw them.
    checksum: int | None = None
    #: Nothing of this operation can land in remote memory any more.
    settled: bool = True
    #: Scheme of the fabric that was used: "inproc", "shm", "tcp", ...
    scheme: str = ""


class Exported(Protocol):
    """Memory that an owner exports: one mount. `pykvpool.memory` makes them."""

    @property
    def generation(self) -> Generation: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def view(self) -> memoryview:
        """The whole memory, writable, format "B"."""
        ...

    def fileno(self) -> int:
        """The memfd behind it, -1 where there is none (then shm does not offer it)."""
        ...


class FabricServer(Protocol):
    """The owner's side of one fabric in one process; may export many segments."""

    scheme: str
    #: A peer that names another cluster is refused. The node says which it is before it exports anything.
    cluster: str

    async def start(self) -> None:
        """Listen. Raises `ConfigError` (port taken, bad address) with the flag to use."""
        ...

    def export(self, memory: Exported) -> str:
        """Offer one mount; returns its endpoint address."""
        ...

    async def withdraw(self, generation: Generation) -> None:
        """End a generation: returns when nothing can read or write it through this fabric any more, or, where that
        cannot be enforced (a live shm peer holds a map), when no new access can begin; the memory object itself is
        then never handed out again."""
        ...

    async def fence(self, name: str, incarnation: int, generation: Generation, ban: bool) -> None:
        """Returns when nothing begun by that peer can land in that generation any more. May take as long as the peer
        lives (shm); the caller runs it as a task. With `ban`, later connections of the peer are refused."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class FabricClient(Protocol):
    """The peer's side of one fabric in one process."""

    scheme: str
    #: Lower is tried first: inproc 0, shm 10, rdma 20, tcp 30.
    cost: int

    def reaches(self, segment: SegmentDescriptor) -> str | None:
        """The endpoint of `segment` that this fabric can use from here (cheap, no I/O), or None."""
        ...

    async def read(self, batch: Sequence[Read], timeout_s: float) -> list[Outcome]:
        """One outcome per operation, in order. See the two rules above."""
        ...

    async def write(self, batch: Sequence[Write], timeout_s: float) -> list[Outcome]:
        """One outcome per operation, in order. See the two rules above."""
        ...

    async def close(self) -> None:
        """Ends connections and maps. Operations under way end with `Closed` outcomes. Harmless twice."""
        ...


@runtime_checkable
class DeviceFabric(Protocol):
    """A `FabricClient` whose NIC may reach the memory of a GPU by itself (GPUDirect)."""

    def device_obstacle(self, operation: Read | Write) -> str | None:
        """Why it cannot move this operation's GPU memory without a copy through the host; None: it can. Registers the
        memory with the NIC at the first question. Never raises."""
        ...

    def device_path(self, operation: Read | Write) -> str:
        """How it reaches memory that has no obstacle, for the log: ``mlx5_0 by dma-buf``."""
        ...
