"""Moves the blocks of a job between memory, named by address, and the pool, through a `Client`.

An object is a block's runs one after another, so a put gathers them and a get scatters into them: nothing is copied but
by the fabric. Work goes in chunks; between two of them the job can be ended. When a mover returns or raises (cancelled
too), the client has drained: nothing touches the memory any more.

It knows nothing of engines, queues or deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Protocol

from pykvpool.client import Client, GetResult, PutItem, PutResult
from pykvpool.errors import KeyConflict, NotReady, PoolError
from pykvpool.host.port import BlockGroup, LoadJob, SaveDone, SaveJob
from pykvpool.memory.copying import bytes_at
from pykvpool.memory.device import DevicePiece, Piece

#: Blocks of one chunk: one request to the master, of a size that it answers in a few milliseconds.
CHUNK_BLOCKS = 512
#: Pieces of one chunk: about a millisecond of the interpreter to name them.
CHUNK_PIECES = 1_024
#: Bytes of one chunk, at least one block: a chunk is what an ended job still waits for.
CHUNK_BYTES = 64 << 20
#: Chunks of one group that are loaded at a time: the request for the next runs beside the bytes of the last.
LOADS_AT_A_TIME = 2


def pieces_of(group: BlockGroup, position: int) -> list[Piece]:
    """The memory of one block, run by run. Whoever made the group vouches for its addresses."""
    block, device = group.block_ids[position], group.device
    places = [(run.base + block * run.stride, run.length) for run in group.runs]
    if device is None:
        return [bytes_at(address, length, None) for address, length in places]
    return [DevicePiece(address, length, device.after, owner=device.owner) for address, length in places]


def chunks_of(group: BlockGroup, limit_bytes: int = CHUNK_BYTES) -> list[range]:
    """Positions in the group, chunk by chunk, in order; a chunk has one block at least."""
    most = (CHUNK_BLOCKS, CHUNK_PIECES // max(1, len(group.runs)), limit_bytes // max(1, group.block_bytes))
    size = max(1, min(most))
    return [range(start, min(start + size, len(group.keys))) for start in range(0, len(group.keys), size)]


def streams_of(chunks: list[range]) -> list[list[range]]:
    """The chunks, dealt out to as many as are loaded at a time."""
    return [chunks[start::LOADS_AT_A_TIME] for start in range(LOADS_AT_A_TIME)]


class Mover(Protocol):
    """Carries out jobs. Whether the memory is this process's own is its business."""

    async def save(self, client: Client, job: SaveJob, tally: SaveTally, timeout_s: float) -> None:
        """Put what the pool does not have; say of each block in `tally` what became of it. A group ends at its first
        block that was dropped, unless somebody else is writing it: what comes behind it in its chain could not be found
        without it.

        Raises where nothing can be said about any block (no master).
        """
        ...

    async def load(self, client: Client, job: LoadJob, timeout_s: float) -> int:
        """Get every block into its place; returns the bytes moved. Raises the first error."""
        ...


class SaveTally:
    """What has become of the blocks of a save so far. Whatever happens to the job, every block is counted once."""

    def __init__(self, job: SaveJob) -> None:
        self._job_id = job.job_id
        self._blocks = sum(len(group.keys) for group in job.groups)
        self._stored = 0
        self._existed = 0
        self._bytes_stored = 0
        self._reasons: dict[str, int] = {}
        #: Why the first block of the last put that lost any was dropped.
        self.last_reason = ""

    def stored(self, size_bytes: int) -> None:
        self._stored += 1
        self._bytes_stored += size_bytes

    def existed(self, blocks: int = 1) -> None:
        self._existed += blocks

    def dropped(self, reason: str, blocks: int = 1) -> None:
        if blocks:
            self._reasons[reason] = self._reasons.get(reason, 0) + blocks

    def put(self, results: Sequence[PutResult | PoolError]) -> bool:
        """Count the results of a put; False: one will not be there for what comes behind it (`last_reason`). One that
        somebody else is writing will be: engines that compute one prefix at a time must not lose what differs."""
        good = True
        for result in results:
            if isinstance(result, PoolError):
                self.dropped(result.kind)
                if not isinstance(result, NotReady):
                    self.last_reason = result.kind if good else self.last_reason
                    good = False
            elif result.existed:
                self.existed()
            else:
                self.stored(result.size_bytes)
        return good

    def done(self, reason: str, seconds: float) -> SaveDone:
        """The report. `reason`: why the blocks that nothing was said of were not stored."""
        dropped = self._blocks - self._stored - self._existed
        self.dropped(reason, dropped - sum(self._reasons.values()))
        return SaveDone(
            self._job_id, self._stored, self._existed, dropped, self._bytes_stored, self._reasons, round(seconds, 6)
        )


def put_item(group: BlockGroup, position: int, pieces: Sequence[Piece]) -> PutItem:
    return PutItem(group.keys[position], pieces, group.parents[position] if group.parents else None)


def check_loaded(results: Sequence[GetResult | PoolError], block_bytes: int) -> None:
    """Raises the first error, and `KeyConflict` for an object that is smaller than a block."""
    for result in results:
        if isinstance(result, PoolError):
            raise result
        if result.size_bytes != block_bytes:
            raise KeyConflict(
                f"a block of {result.size_bytes} bytes lies in the pool where one of {block_bytes} is expected",
                size_bytes=result.size_bytes,
            )


class AddressMover:
    """A `Mover` between the pool and this process's own memory."""

    async def save(self, client: Client, job: SaveJob, tally: SaveTally, timeout_s: float) -> None:
        for group in job.groups:
            for chunk in chunks_of(group):
                items = [put_item(group, i, pieces_of(group, i)) for i in chunk]
                results = await client.put_batch(items, scope=group.scope, wait=False, timeout_s=timeout_s)
                if not tally.put(results):
                    tally.dropped(tally.last_reason, len(group.keys) - chunk.stop)
                    break

    async def load(self, client: Client, job: LoadJob, timeout_s: float) -> int:
        works = [
            self._load(client, group, chunks, timeout_s)
            for group in job.groups
            for chunks in streams_of(chunks_of(group))
        ]
        return await all_or_first_error(works)

    async def _load(self, client: Client, group: BlockGroup, chunks: Sequence[range], timeout_s: float) -> int:
        for chunk in chunks:
            keys, places = [group.keys[i] for i in chunk], [pieces_of(group, i) for i in chunk]
            results = await client.get_into_batch(keys, places, scope=group.scope, timeout_s=timeout_s)
            check_loaded(results, group.block_bytes)
        return group.block_bytes * sum(map(len, chunks))


async def all_or_first_error(works: Sequence[Coroutine[object, object, int]]) -> int:
    """The sum of their results. Raises the first error, when all of them have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return sum(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await _all_over(tasks)


async def _all_over(tasks: Sequence[asyncio.Future[int]]) -> None:
    """However often we are cancelled: they touch the caller's memory until then."""
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # the first one was raised, the others have nothing to add
    if cancelled is not None:
        raise cancelled
