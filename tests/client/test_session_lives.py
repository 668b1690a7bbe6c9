"""What a master gave out in one life of the session is never spoken of in the next: a restarted master counts from one
again, so the same numbers name other puts, leases and segments there."""

from __future__ import annotations

import asyncio

import pytest

from pykvpool.client import writer as writer_module
from pykvpool.client.fabrics import Fabrics
from pykvpool.client.held import HeldLease
from pykvpool.client.reader import GetJob, Reader
from pykvpool.client.types import PutOptions
from pykvpool.client.writer import PutJob, Writer
from pykvpool.errors import SessionExpired, Unavailable
from pykvpool.fabric.base import Outcome
from pykvpool.model.commands import GetReplicas, PutEnd, PutForget, PutRevoke, PutStart, PutWait, Release, Renew
from pykvpool.model.objects import ObjectInfo, SegmentDescriptor
from pykvpool.model.replies import Done, Located, Pending, PutGrant, PutStarted
from tests.client.fakes import OTHER, SEGMENT, Bench, FakeRouter, extent

VALUE = b"bytes of a block"


def renew(bench: Bench) -> FakeRouter:
    """Another call of this client has renewed the session; returns the router of the new life."""
    bench.session.incarnation += 1
    bench.fabrics.router = FakeRouter()
    return bench.fabrics.router


async def put(bench: Bench, *jobs: PutJob) -> None:
    await Writer(bench.link, bench.fabrics, bench.statistics).put(1, jobs, PutOptions(), bench.deadline_ms)


def job(name: bytes) -> PutJob:
    return PutJob(name, len(VALUE), [memoryview(VALUE)])


def bench_with(*grants: PutGrant) -> Bench:
    return Bench({PutStart: [PutStarted(grants)], PutEnd: [Done()], PutRevoke: [Done()], PutForget: [Done()]})


async def test_p1_a_put_id_is_not_ended_in_a_later_life_where_it_names_another_put():
    bench = bench_with(PutGrant(7, (extent(SEGMENT, 0, len(VALUE)),)))

    def before(_operation):
        renew(bench)

    bench.router.before = before
    with pytest.raises(SessionExpired, match="renewed"):
        await put(bench, job(b"k"))
    await bench.end()
    assert [type(command) for command in bench.session.sent] == [PutStart]


async def test_p2_nothing_is_written_in_a_later_life_under_a_grant_of_an_earlier_one(monkeypatch):
    monkeypatch.setattr(writer_module, "GROUP_BYTES", 1)
    bench = bench_with(*(PutGrant(number, (extent(SEGMENT, 64 * number, len(VALUE)),)) for number in (0, 1)))
    old = bench.router
    later = []

    def before(operation):
        if operation.offset == 0:
            renew(bench).before = later.append
            return Outcome(error=Unavailable("the session is over"))
        return None

    old.before = before
    with pytest.raises(SessionExpired):
        await put(bench, job(b"a"), job(b"b"))
    await bench.end()
    assert later == []


async def test_what_waited_or_failed_when_the_session_was_lost_can_be_tried_in_the_next(monkeypatch):
    monkeypatch.setattr(writer_module, "GROUP_BYTES", 1)
    bench = bench_with(PutGrant(1, (extent(SEGMENT, 0, len(VALUE)),)), PutGrant(2, (extent(SEGMENT, 64, len(VALUE)),)))
    bench.router.before = lambda operation: None if operation.offset else Outcome(error=Unavailable("cut off"))
    bench.session.script[PutEnd] = [SessionExpired("fell silent")]
    failed, uncommitted = job(b"a"), job(b"b")
    with pytest.raises(SessionExpired):
        await put(bench, failed, uncommitted)
    assert (failed.result, uncommitted.result) == (None, None)
    bench.session.script |= {PutStart: [PutStarted((Pending(3, False),))], PutWait: [SessionExpired("fell silent")]}
    waiting = job(b"c")
    with pytest.raises(SessionExpired):
        await put(bench, waiting)
    assert waiting.result is None
    await bench.end()


async def test_p1_extents_of_an_earlier_life_are_read_where_that_life_said_they_are():
    found = ObjectInfo(3, len(VALUE), None, (extent(SEGMENT, 0, len(VALUE)), extent(OTHER, 0, len(VALUE))))
    bench = Bench({GetReplicas: [Located((found,), lease=8, lease_ms=10_000)], Release: [Done()]})
    bench.router.memory[98][: len(VALUE)] = VALUE

    def before(operation):
        if operation.segment == SEGMENT:
            renew(bench)
            bench.link.learn([SegmentDescriptor(OTHER.segment, 97, "n7", 1 << 20, ("fake://n7",))])
            return Outcome(error=Unavailable("n0 is gone"))
        return None

    bench.router.before = before
    target = bytearray(len(VALUE))
    wanted = GetJob(b"k", "k", lambda size: [memoryview(target)])
    await Reader(bench.link, bench.fabrics, bench.statistics).get(1, [wanted], bench.deadline_ms)
    assert target == VALUE
    assert wanted.result.node == "n1"
    await bench.end()


async def test_p2_a_lease_of_an_earlier_life_is_neither_renewed_nor_released_in_a_later_one():
    bench = Bench({Renew: [Done()], Release: [Done()]})
    held = HeldLease(bench.link, 8, 10_000, bench.clock.ms)
    renew(bench)
    with pytest.raises(SessionExpired):
        await held.renew()
    held.release()
    await bench.end()
    assert bench.session.sent == []


async def test_p2_the_fabrics_of_an_earlier_life_are_closed_to_the_end_whoever_stops_waiting():
    gate, closed = asyncio.Event(), []

    class SlowRouter(FakeRouter):
        async def close(self) -> None:
            await gate.wait()
            closed.append(self)

    fabrics = Fabrics(SlowRouter)
    old = fabrics.router
    renewing = asyncio.ensure_future(fabrics.renew())
    await asyncio.sleep(0)
    renewing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await renewing
    gate.set()
    await fabrics.close()
    assert closed == [old, fabrics.router]
