"""What the fabrics of one host share: a batch becomes copies between two buffers of this address space.

`inproc` and `shm` differ only in how they come by a view of the segment (`LocalMemory`) and in what may end it. Copies
run in offload threads without the GIL, a big batch on several at once; each operation's checksum is taken on the way.
A copy can be asked to stop, and a transfer is over only when its threads have left the buffers, so every outcome here
is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from pykvpool.errors import Closed, DeadlineExceeded, InternalError, PoolError
from pykvpool.fabric.base import Outcome, Peer, Read, Write
from pykvpool.fabric.checks import refuse_operation
from pykvpool.fabric.tasks import run_all
from pykvpool.memory.copying import INLINE_BYTES, Stop, Stopped, copy_pieces
from pykvpool.model.ids import Generation
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import OFFLOAD_THREADS, Offload

#: A batch is split over threads in parts of at least this size: 1 MiB takes 50 us to copy, a hand-over 20 to 50.
MIN_PART_BYTES = 1024 * 1024


class Transfer:
    """Copies under way for one batch and one segment. `end` them early with the reason that their outcomes get."""

    __slots__ = ("generation", "peer", "reason", "stop")

    def __init__(self, peer: Peer, generation: Generation) -> None:
        self.peer = peer
        self.generation = generation
        self.stop = Stop()
        #: Why it was stopped; None: the deadline or a cancellation.
        self.reason: PoolError | None = None

    def end(self, reason: PoolError | None) -> None:
        self.stop.requested = True
        self.reason = self.reason or reason


class InFlight:
    """The transfers that use some memory now, so that whoever must end it can stop them and wait."""

    def __init__(self) -> None:
        #: In order of start; values mean nothing.
        self._transfers: dict[Transfer, None] = {}
        self._changed: list[asyncio.Future[None]] = []

    @contextmanager
    def running(self, transfer: Transfer) -> Iterator[None]:
        self._transfers[transfer] = None
        try:
            yield
        finally:
            del self._transfers[transfer]
            waiting, self._changed = self._changed, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def end(self, reason: PoolError, which: Callable[[Transfer], bool] = lambda _transfer: True) -> None:
        """Stop the transfers that `which` picks; returns when they have left the memory."""
        ending = [transfer for transfer in self._transfers if which(transfer)]
        for transfer in ending:
            transfer.end(reason)
        while any(transfer in self._transfers for transfer in ending):
            future = asyncio.get_running_loop().create_future()
            self._changed.append(future)
            await future


class LocalMemory(Protocol):
    """A segment that this process can address."""

    @property
    def view(self) -> memoryview: ...

    @property
    def in_flight(self) -> InFlight: ...

    def refuse(self, operation: Read | Write) -> PoolError | None:
        """Why the owner would not let this operation in (bounds, put_id), None if it would."""
        ...

    def check(self) -> None:
        """Raises the error that says why this memory must not be used (any more)."""
        ...


@dataclass(slots=True)
class _Job:
    index: int
    operation: Read | Write
    targets: Sequence[memoryview]
    sources: Sequence[memoryview]


#: Finds the memory of a segment; may connect and map, so it may wait, and raises `PoolError`.
OpenLocal = Callable[[SegmentDescriptor], Awaitable[LocalMemory]]


class LocalMover:
    """Turns batches into copies; half of a `FabricClient`."""

    def __init__(self, scheme: str, peer: Peer, offload: Offload) -> None:
        self._scheme = scheme
        self._peer = peer
        self._offload = offload
        self._in_flight = InFlight()
        self._closed: Closed | None = None

    async def move(self, batch: Sequence[Read | Write], timeout_s: float, open_memory: OpenLocal) -> list[Outcome]:
        """One outcome per operation. `open_memory` is called once per segment."""
        outcomes: list[Outcome | None] = [None] * len(batch)
        groups: dict[tuple[int, int], list[int]] = {}
        for index, operation in enumerate(batch):
            refusal = refuse_operation(operation, self._peer)
            if refusal is not None:
                outcomes[index] = self._failed(refusal)
            else:
                segment = operation.segment
                groups.setdefault((segment.generation, segment.segment), []).append(index)
        work = [self._move_group(batch, indexes, outcomes, open_memory) for indexes in groups.values()]
        late: PoolError = DeadlineExceeded(f"{self._scheme}: not done within {timeout_s:g} s")
        try:
            async with asyncio.timeout(timeout_s):
                await run_all(work)
        except TimeoutError:
            pass  # whatever has no outcome is late
        return [outcome or self._failed(late) for outcome in outcomes]

    def view(self, memory: LocalMemory, segment: SegmentDescriptor, offset: int, length: int) -> memoryview:
        """A read-only view of a range of `memory`. Raises `PoolError` as a read of it would."""
        if self._closed is not None:
            raise self._closed
        memory.check()
        refusal = memory.refuse(Read(segment, offset, length, ()))
        if refusal is not None:
            raise refusal
        return memory.view[offset : offset + length].toreadonly()

    async def close(self) -> None:
        """Stop what is under way; returns when no thread uses anybody's buffers."""
        self._closed = Closed(f"the {self._scheme} fabric client is closed")
        await self._in_flight.end(self._closed)

    def _failed(self, error: PoolError) -> Outcome:
        return Outcome(error=error, scheme=self._scheme)

    async def _move_group(
        self,
        batch: Sequence[Read | Write],
        indexes: list[int],
        outcomes: list[Outcome | None],
        open_memory: OpenLocal,
    ) -> None:
        """Fill in the outcomes of all operations on one segment."""
        segment = batch[indexes[0]].segment
        try:
            if self._closed is not None:
                raise self._closed
            memory = await open_memory(segment)
            memory.check()
            transfer = Transfer(self._peer, segment.generation)
            with memory.in_flight.running(transfer), self._in_flight.running(transfer):
                jobs = self._jobs(batch, indexes, outcomes, memory)
                checksums = await self._copy(jobs, transfer)
            memory.check()
        except Stopped:
            error = transfer.reason or InternalError("a copy stopped that nobody had stopped")
        except PoolError as raised:
            error = raised
        else:
            for job, checksum in zip(jobs, checksums, strict=True):
                outcomes[job.index] = Outcome(checksum=checksum, scheme=self._scheme)
            return
        for index in indexes:
            outcomes[index] = outcomes[index] or self._failed(error)

    def _jobs(
        self,
        batch: Sequence[Read | Write],
        indexes: list[int],
        outcomes: list[Outcome | None],
        memory: LocalMemory,
    ) -> list[_Job]:
        jobs = []
        view = memory.view
        for index in indexes:
            operation = batch[index]
            refusal = memory.refuse(operation)
            if refusal is not None:
                outcomes[index] = self._failed(refusal)
                continue
            remote = [view[operation.offset : operation.offset + operation.length]]
            if isinstance(operation, Write):
                jobs.append(_Job(index, operation, remote, operation.pieces))
            else:
                jobs.append(_Job(index, operation, operation.pieces, remote))
        return jobs

    async def _copy(self, jobs: list[_Job], transfer: Transfer) -> list[int | None]:
        """Checksums by job. Raises `Stopped`. Returns or raises only when no copy runs any more."""
        size = sum(job.operation.length for job in jobs)
        if size <= INLINE_BYTES:
            return _copy_part(jobs, transfer.stop)
        parts = _split(jobs, size, min(OFFLOAD_THREADS, max(1, size // MIN_PART_BYTES)))
        # An abort stops the copies between two chunks; the threads are waited for either way.
        results = await run_all(
            [self._offload.run(_copy_part, part, transfer.stop) for part in parts], lambda: transfer.end(None)
        )
        return [checksum for result in results for checksum in result]


def _copy_part(jobs: list[_Job], stop: Stop) -> list[int | None]:
    return [copy_pieces(job.targets, job.sources, want_checksum=job.operation.want_checksum, stop=stop) for job in jobs]


def _split(jobs: list[_Job], size: int, parts: int) -> list[list[_Job]]:
    """Cut `jobs` into at most `parts` runs of about equal bytes. An operation stays whole: its sum is sequential."""
    share = size / parts
    runs: list[list[_Job]] = [[]]
    filled = 0
    for job in jobs:
        if runs[-1] and len(runs) < parts and filled + job.operation.length / 2 >= share * len(runs):
            runs.append([])
        runs[-1].append(job)
        filled += job.operation.length
    return runs
