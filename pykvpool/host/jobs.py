"""Moves the blocks of a job between memory, named by address, and the pool, through a `Client`.

An object is a block's runs one after another, so a put gathers them and a get scatters into them: nothing is copied but
by the fabric. Work goes in chunks; between two of them the job can be ended. When a function here returns or raises
(cancelled too), the client has drained: nothing touches the memory any more.

It knows nothing of engines, queues or deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from pykvpool.client import Client, PutItem
from pykvpool.errors import KeyConflict, PoolError
from pykvpool.host.port import BlockGroup, LoadJob, SaveDone, SaveJob
from pykvpool.memory.copying import bytes_at

#: Blocks of one chunk: about a millisecond of the interpreter to name their pieces.
CHUNK_BLOCKS = 64
#: Bytes of one chunk, at least one block: a chunk is what an ended job still waits for.
CHUNK_BYTES = 64 << 20


def pieces_of(group: BlockGroup, position: int) -> list[memoryview]:
    """The memory of one block, run by run. Whoever made the group vouches for its addresses."""
    block = group.block_ids[position]
    return [bytes_at(run.base + block * run.stride, run.length, None) for run in group.runs]


def chunks_of(group: BlockGroup) -> Iterator[range]:
    """Positions in the group, chunk by chunk, in order."""
    size = max(1, min(CHUNK_BLOCKS, CHUNK_BYTES // max(1, group.block_bytes)))
    for start in range(0, len(group.keys), size):
        yield range(start, min(start + size, len(group.keys)))


class SaveTally:
    """What has become of the blocks of a save so far. Whatever happens to the job, every block is counted once."""

    def __init__(self, job: SaveJob) -> None:
        self._job_id = job.job_id
        self._blocks = sum(len(group.keys) for group in job.groups)
        self._stored = 0
        self._existed = 0
        self._bytes_stored = 0
        self._reasons: dict[str, int] = {}

    def stored(self, size_bytes: int) -> None:
        self._stored += 1
        self._bytes_stored += size_bytes

    def existed(self) -> None:
        self._existed += 1

    def dropped(self, reason: str, blocks: int = 1) -> None:
        if blocks:
            self._reasons[reason] = self._reasons.get(reason, 0) + blocks

    def done(self, reason: str, seconds: float) -> SaveDone:
        """The report. `reason`: why the blocks that nothing was said of were not stored."""
        dropped = self._blocks - self._stored - self._existed
        self.dropped(reason, dropped - sum(self._reasons.values()))
        return SaveDone(
            self._job_id, self._stored, self._existed, dropped, self._bytes_stored, self._reasons, round(seconds, 6)
        )


async def save(client: Client, job: SaveJob, tally: SaveTally, timeout_s: float) -> None:
    """Put what the pool does not have. A group ends at its first block that was dropped: what comes behind it in its
    chain could not be found without it.

    Raises where nothing can be said about any block (no master).
    """
    for group in job.groups:
        for chunk in chunks_of(group):
            items = [
                PutItem(group.keys[i], pieces_of(group, i), group.parents[i] if group.parents else None) for i in chunk
            ]
            results = await client.put_batch(items, scope=group.scope, wait=False, timeout_s=timeout_s)
            failure: PoolError | None = None
            for result in results:
                if isinstance(result, PoolError):
                    failure = failure or result
                    tally.dropped(result.kind)
                elif result.existed:
                    tally.existed()
                else:
                    tally.stored(result.size_bytes)
            if failure is not None:
                tally.dropped(failure.kind, len(group.keys) - chunk.stop)
                break


async def load(client: Client, job: LoadJob, timeout_s: float) -> int:
    """Get every block into its place; returns the bytes moved. Raises the first error, when all of it has drained."""
    tasks = [asyncio.ensure_future(_load_group(client, group, timeout_s)) for group in job.groups]
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


async def _load_group(client: Client, group: BlockGroup, timeout_s: float) -> int:
    block_bytes = group.block_bytes
    for chunk in chunks_of(group):
        results = await client.get_into_batch(
            [group.keys[i] for i in chunk],
            [pieces_of(group, i) for i in chunk],
            scope=group.scope,
            timeout_s=timeout_s,
        )
        for result in results:
            if isinstance(result, PoolError):
                raise result
            if result.size_bytes != block_bytes:
                raise KeyConflict(
                    f"a block of {result.size_bytes} bytes lies in the pool where one of {block_bytes} is expected",
                    size_bytes=result.size_bytes,
                )
    return block_bytes * len(group.keys)
