"""Jobs that the node was told of and that have no end yet: each ends once, and only for these is anything copied.

Copies between the ring and the engine's memory are made here and nowhere else, between two turns of the loop. So a job
that is ended (deadline, lost node) is over at once: whatever the node still does with it ends in the ring.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import TypeVar

from pykvpool.errors import DeadlineExceeded, PoolError, TransferFailed
from pykvpool.host.agent import wire
from pykvpool.host.agent.outbox import Claim
from pykvpool.host.agent.ring import RingFile, places_of
from pykvpool.host.port import LoadDone, LoadJob, Run, SaveDone, SaveJob
from pykvpool.host.work import Emit

log = logging.getLogger("pykvpool.host.agent")

#: How much longer than the node a job's deadline is waited for here (s).
GRACE_S = 1.0

Job = TypeVar("Job", SaveJob, LoadJob)


@dataclasses.dataclass(frozen=True, slots=True)
class _UnderWay:
    job: SaveJob | LoadJob
    began: float
    timer: asyncio.TimerHandle


class JobsUnderWay:
    """All methods are for the loop's thread. Ends go to `emit`; `drop` tells the node that a job was given up."""

    def __init__(self, name: str, drop: Callable[[int], object], emit: Emit) -> None:
        self._name = name
        self._drop = drop
        self._emit = emit
        self._jobs: dict[int, _UnderWay] = {}
        #: Whoever waits for the end of all saves.
        self._ended = asyncio.Event()

    def begin(self, job: SaveJob | LoadJob) -> Claim:
        loop, job_id = asyncio.get_running_loop(), job.job_id
        timer = loop.call_later(job.timeout_ms / 1_000 + GRACE_S, self._late, job_id)
        self._jobs[job_id] = _UnderWay(job, loop.time(), timer)
        return Claim(lambda: job_id in self._jobs, lambda error: self.fail(job_id, error))

    def done(self, event: SaveDone | LoadDone) -> None:
        """The node says so. Nothing happens where the job has ended already."""
        if self._end(event.job_id) is not None:
            self._emit(event)

    def fail(self, job_id: int, error: PoolError) -> None:
        """Nothing happens where the job has ended already."""
        under_way = self._end(job_id)
        if under_way is None:
            return
        seconds = asyncio.get_running_loop().time() - under_way.began
        if isinstance(under_way.job, LoadJob):
            self._emit(LoadDone(job_id, False, 0, error.message, error.kind, seconds))
        else:
            blocks = sum(len(group.keys) for group in under_way.job.groups)
            reasons = {error.kind: blocks} if blocks else {}
            self._emit(SaveDone(job_id, dropped=blocks, reasons=reasons, seconds=seconds))

    def fail_all(self, error: PoolError) -> None:
        for job_id in list(self._jobs):
            self.fail(job_id, error)

    async def saves_end(self) -> None:
        """Until no save is under way."""
        while any(isinstance(under_way.job, SaveJob) for under_way in self._jobs.values()):
            self._ended.clear()
            await self._ended.wait()

    def copy(self, message: wire.Fill | wire.Take, ring: RingFile | None) -> bool:
        """Between the ring and the engine's memory, if the job is still under way."""
        under_way = self._jobs.get(message.job_id)
        if under_way is None or ring is None:
            return False
        try:
            if not 0 <= message.group < len(under_way.job.groups):
                raise TransferFailed("the node speaks of a group that the job does not have")
            group = under_way.job.groups[message.group]
            if not all(0 <= position < len(group.keys) for position in message.positions):
                raise TransferFailed("the node speaks of blocks that the job does not have")
            places = places_of(group, message.positions)
            if isinstance(message, wire.Take):
                ring.read_into(places, message.offset)
            else:
                ring.write_from(places, message.offset)
        except PoolError as error:
            log.warning("%s: job %d failed: %s", self._name, message.job_id, error)
            self._give_up(message.job_id, error)
            return False
        return True

    def _late(self, job_id: int) -> None:
        self._give_up(job_id, DeadlineExceeded("the job was not over within its time"))

    def _give_up(self, job_id: int, error: PoolError) -> None:
        self._drop(job_id)
        self.fail(job_id, error)

    def _end(self, job_id: int) -> _UnderWay | None:
        under_way = self._jobs.pop(job_id, None)
        if under_way is not None:
            under_way.timer.cancel()
            self._ended.set()
        return under_way


def without_places(job: Job) -> Job:
    """What the node may know of a job: keys and sizes."""
    groups = tuple(
        dataclasses.replace(group, block_ids=(), runs=(Run(0, 0, group.block_bytes),)) for group in job.groups
    )  # fmt: skip
    return dataclasses.replace(job, groups=groups)
