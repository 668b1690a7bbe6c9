"""Save jobs that are under way, and the blocks they keep from being given out again.

Saves read the engine's memory in the background, so a block must not be reused before every rank has done with it,
whatever became of its request: finished, aborted, preempted, moved out of a sliding window (vLLM#52360). Each job holds
one reference on each of its blocks in the engine's own pool, under a number that is never used again, and gives them
back once: when the last rank has reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pykvpool.errors import invariant
from pykvpool_connector.vllm.messages import SaveReport
from pykvpool_connector.vllm.scheduler.engine import Block, EngineBlocks

#: A job's own deadline is the workers' business; so much later its missing reports are asked for.
OVERDUE_GRACE_MS = 5_000
#: And again after so long.
OVERDUE_AGAIN_MS = 1_000


@dataclass(slots=True)
class PinnedJob:
    """One save job between its order and its last report."""

    job_id: int
    #: In the order of their chains.
    blocks: tuple[Block, ...]
    #: (adapter, group, key) of each block.
    names: tuple[tuple[str, int, bytes], ...]
    #: When it should have been reported, or is to be asked for (again), in milliseconds of the clock.
    deadline: int
    #: What to tell listeners once the pool has all of it.
    notices: tuple[object, ...] = ()
    report: SaveReport = field(default_factory=SaveReport)


class Pins:
    """Blocks pinned by save jobs.

    Args:
        blocks: the engine's blocks.
        world: ranks that report each job.
        max_ratio: most of the engine's blocks that may be pinned; one may be in any case, or nothing is ever saved.
        now: milliseconds.
    """

    def __init__(self, blocks: EngineBlocks, world: int, max_ratio: float, now: Callable[[], int]) -> None:
        self._blocks = blocks
        self._everyone = (1 << world) - 1
        self._now = now
        self._most = max(1, int(blocks.total * max_ratio))
        #: Jobs by number, oldest first.
        self._jobs: dict[int, PinnedJob] = {}
        #: Jobs that pin a block, by its number.
        self._pinned: dict[int, int] = {}
        #: Blocks that some job is saving, so that no second one does.
        self._saving: set[tuple[str, int, bytes]] = set()

    @property
    def jobs(self) -> int:
        return len(self._jobs)

    @property
    def pinned(self) -> int:
        """Blocks that are pinned."""
        return len(self._pinned)

    @property
    def room(self) -> int:
        """How many more blocks may be pinned."""
        return max(0, self._most - len(self._pinned))

    def saving(self, name: tuple[str, int, bytes]) -> bool:
        return name in self._saving

    def pin(self, job: PinnedJob) -> None:
        invariant(job.job_id not in self._jobs, "a save job's number is used once")
        invariant(all(not block.is_null for block in job.blocks), "the null block is never saved")
        self._blocks.touch(job.blocks)
        for block in job.blocks:
            self._pinned[block.block_id] = self._pinned.get(block.block_id, 0) + 1
        self._saving.update(job.names)
        self._jobs[job.job_id] = job

    def reported(self, job_id: int, report: SaveReport) -> PinnedJob | None:
        """Take ranks' reports of a job; the job, unpinned, once all have reported. A repeated one changes nothing."""
        job = self._jobs.get(job_id)
        if job is None or not report.rank_bits & ~job.report.rank_bits:
            return None
        job.report.add(report)
        if job.report.rank_bits & self._everyone != self._everyone:
            return None
        self.unpin(job_id)
        return job

    def unpin(self, job_id: int) -> PinnedJob:
        """Give back a job's blocks, those at the end of their chain first."""
        job = self._jobs.pop(job_id)
        for block in job.blocks:
            left = self._pinned.pop(block.block_id) - 1
            if left:
                self._pinned[block.block_id] = left
        self._saving.difference_update(job.names)
        self._blocks.free(reversed(job.blocks))
        return job

    def overdue(self) -> tuple[int, ...]:
        """Jobs whose reports are missing and were not asked for lately."""
        now = self._now()
        late = [job for job in self._jobs.values() if job.deadline <= now]
        for job in late:
            job.deadline = now + OVERDUE_AGAIN_MS
        return tuple(job.job_id for job in late)

    def close(self) -> None:
        """Give everything back: nobody will report any more."""
        for job_id in list(self._jobs):
            self.unpin(job_id)


def job_deadline(now: int, timeout_ms: int) -> int:
    return now + timeout_ms + OVERDUE_GRACE_MS
