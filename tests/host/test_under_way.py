"""Jobs that a node was told of: each ends once, in time, and nothing is copied for one that is over."""

from __future__ import annotations

import asyncio
import os

import pytest

from pykvpool.errors import Closed
from pykvpool.host.agent import under_way, wire
from pykvpool.host.agent.ring import RingFile
from pykvpool.host.agent.under_way import JobsUnderWay
from pykvpool.host.port import LoadDone, LoadJob, SaveDone, SaveJob
from tests.host.stage import Memory, chain


class Jobs(JobsUnderWay):
    """Notes what is told."""

    def __init__(self) -> None:
        self.events: list = []
        self.dropped: list[int] = []
        super().__init__("engine", self.dropped.append, self.events.append)


@pytest.fixture
def ring():
    file = RingFile(1 << 16)
    os.pwrite(file.fd, b"x" * (1 << 16), 0)
    yield file
    file.close()


async def test_nothing_is_copied_for_a_job_that_is_over(ring):
    """A node that is slow, or wrong, speaks of it still."""
    jobs, memory = Jobs(), Memory()
    jobs.begin(LoadJob(7, (memory.group(chain(1), (3,)),), 10_000))
    late = wire.Take(1, 7, 0, (0,), 0)
    for wrong in (wire.Take(2, 7, 1, (0,), 0), wire.Take(3, 7, 0, (5,), 0), wire.Take(4, 7, 0, (0,), 1 << 16)):
        assert not jobs.copy(wrong, ring)
        assert not jobs.copy(late, ring)  # the job has failed meanwhile
        assert [event.reason for event in jobs.events] == ["TransferFailed"]
        assert memory.block(3) == bytes(memory.block_bytes)
        jobs.events.clear()
        jobs.begin(LoadJob(7, (memory.group(chain(1), (3,)),), 10_000))
    assert jobs.dropped == [7, 7, 7]
    assert jobs.copy(late, ring)
    assert memory.block(3) == b"x" * memory.block_bytes
    jobs.fail_all(Closed("the test is over"))


async def test_a_job_ends_once_whatever_the_node_says_of_it():
    jobs, memory = Jobs(), Memory()
    jobs.begin(LoadJob(1, (memory.group(chain(2), (1, 2)),), 10_000))
    jobs.begin(SaveJob(2, (memory.group(chain(2), (1, 2)),), 10_000))
    jobs.done(LoadDone(1, True))
    jobs.fail(2, Closed("it is over"))
    ended = list(jobs.events)
    assert [event.job_id for event in ended] == [1, 2]
    assert ended[1].reasons == {"Closed": 2}
    for late in (LoadDone(1, False), SaveDone(2, stored=2), SaveDone(99, stored=1)):
        jobs.done(late)
    jobs.fail(1, Closed("again"))
    jobs.fail_all(Closed("again"))
    assert jobs.events == ended


async def test_a_job_that_the_node_is_silent_about_ends_by_its_deadline(monkeypatch, ring):
    monkeypatch.setattr(under_way, "GRACE_S", 0.0)
    jobs, memory = Jobs(), Memory()
    jobs.begin(LoadJob(1, (memory.group(chain(1), (3,)),), 1))
    async with asyncio.timeout(20.0):
        while not jobs.events:
            await asyncio.sleep(0)
    assert (jobs.events[0].loaded, jobs.events[0].reason) == (False, "DeadlineExceeded")
    assert jobs.dropped == [1], "the node need not go on"
    assert not jobs.copy(wire.Take(1, 1, 0, (0,), 0), ring)
    assert memory.block(3) == bytes(memory.block_bytes)
