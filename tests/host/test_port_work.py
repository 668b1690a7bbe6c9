"""The work behind a port: jobs that hang, or end early, or are given up, are reported like all others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pykvpool.errors import Unavailable
from pykvpool.host.access import PoolLine
from pykvpool.host.port import LoadDone, LoadJob, SaveDone, SaveJob
from pykvpool.host.work import SAVES_AT_A_TIME, PortWork
from tests.host.stage import Memory, chain


class Line:
    """A pool that does whatever it is asked."""

    def new_watcher(self) -> int:
        return 1

    def unwatch(self, number: int) -> None:
        pass

    async def run(self, work: Callable[[object], Awaitable[object]]) -> object:
        return await work(None)


class HangingMover:
    """Never ends by itself; `begun` counts jobs, and those that drained."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.drained: list[int] = []

    async def save(self, client, job, tally, timeout_s) -> None:
        await self.load(client, job, timeout_s)

    async def load(self, client, job, timeout_s) -> int:
        self.begun.append(job.job_id)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.drained.append(job.job_id)


class Stage:
    def __init__(self) -> None:
        self.events: list = []
        self.mover = HangingMover()
        self.work = PortWork(Line(), self.mover, self.events.append)
        self._memory = Memory()

    def save(self, job_id: int, timeout_ms: int = 60_000) -> None:
        self.work.save(SaveJob(job_id, (self._memory.group(chain(3), range(3)),), timeout_ms))

    def load(self, job_id: int, timeout_ms: int = 60_000) -> None:
        self.work.load(LoadJob(job_id, (self._memory.group(chain(3), range(3)),), timeout_ms))

    async def until_ended(self, count: int) -> list:
        async with asyncio.timeout(20.0):
            while len(self.events) < count:
                await asyncio.sleep(0)
        return sorted(self.events, key=lambda event: event.job_id)


async def test_what_hangs_ends_by_its_deadline():
    stage = Stage()
    stage.save(1, timeout_ms=1)
    stage.load(2, timeout_ms=1)
    saved, loaded = await stage.until_ended(2)
    assert (saved.dropped, saved.reasons) == (3, {"DeadlineExceeded": 3})
    assert (loaded.loaded, loaded.reason) == (False, "DeadlineExceeded")
    assert sorted(stage.mover.drained) == [1, 2]


async def test_a_save_that_waits_for_its_turn_has_a_deadline_too():
    stage = Stage()
    for number in range(SAVES_AT_A_TIME):
        stage.save(number + 1)
    stage.save(99, timeout_ms=1)
    [late] = await stage.until_ended(1)
    assert (late.job_id, late.reasons) == (99, {"DeadlineExceeded": 3})
    assert stage.mover.begun == [1, 2, 3, 4]
    await stage.work.close(0.0)


async def test_what_is_dropped_or_closed_has_not_been_done():
    stage = Stage()
    for number in (1, 3):
        stage.save(number)
        stage.load(number + 1)
    while len(stage.mover.begun) < 4:
        await asyncio.sleep(0)
    stage.work.drop(1)
    stage.work.drop(2)
    stage.work.drop(77)
    dropped = await stage.until_ended(2)
    assert [event.job_id for event in dropped] == [1, 2]
    await stage.work.close(0.0)
    for event in stage.events:
        assert event.job_id in stage.mover.drained
        if isinstance(event, LoadDone):
            assert (event.loaded, event.reason) == (False, "Closed")
        else:
            assert isinstance(event, SaveDone)
            assert event.reasons == {"Closed": 3}
    assert sorted(event.job_id for event in stage.events) == [1, 2, 3, 4]


@pytest.mark.slow
async def test_p10_work_under_way_is_given_up_soon_after_the_master_is_gone(make_pool):
    pool = make_pool().start(nodes=0)
    line = PoolLine(pool.access(), pool.runtime)
    line.start()
    while not line.connected:
        await asyncio.sleep(0.002)
    drained = asyncio.Event()

    async def hang(client) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            drained.set()

    working = asyncio.ensure_future(line.run(hang))
    await asyncio.sleep(0)
    await asyncio.to_thread(pool.kill_master)
    async with asyncio.timeout(20.0):
        with pytest.raises(Unavailable):
            await working
    assert drained.is_set()
    await line.close()
