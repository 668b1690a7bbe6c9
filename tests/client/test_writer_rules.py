"""The writer's rules: nothing is held while it waits; however a put is left, the master learns what may still land."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from pykvpool.client.types import PutOptions
from pykvpool.client.writer import PutJob, Writer
from pykvpool.errors import DeadlineExceeded, PoolFull, SegmentGone, StalePut, TransferFailed, Unavailable
from pykvpool.fabric.base import Outcome
from pykvpool.memory.copying import checksum
from pykvpool.model.commands import PutEnd, PutForget, PutRevoke, PutStart, PutWait
from pykvpool.model.replies import Done, ErrorInfo, Existing, Pending, PutGrant, PutStarted
from tests.client.fakes import OTHER, SEGMENT, Bench, extent

VALUE = b"bytes of a block"


def grant(put_id, offset=0, *, both=False):
    extents = (extent(SEGMENT, offset, len(VALUE)), *((extent(OTHER, offset, len(VALUE)),) if both else ()))
    return PutGrant(put_id, extents)


def bench_with(*starts, waits=()):
    return Bench(
        {
            PutStart: [PutStarted(tuple(start)) for start in starts],
            PutWait: [PutStarted(tuple(wait)) for wait in waits] or [DeadlineExceeded("nothing came")],
            PutEnd: [lambda command: Done((None,) * len(command.puts))],
            PutRevoke: [Done()],
            PutForget: [Done()],
        }
    )


def job(name: bytes = b"k") -> PutJob:
    return PutJob(name, len(VALUE), [memoryview(VALUE)])


async def put(bench, *jobs, **options):
    await Writer(bench.link, bench.fabrics, bench.statistics).put(1, jobs, PutOptions(**options), bench.deadline_ms)
    await bench.end()
    return [one.result for one in jobs]


async def test_what_landed_is_ended_with_the_checksum_of_the_bytes():
    bench = bench_with([grant(7)])
    [result] = await put(bench, job())
    assert (result.replicas, result.scheme) == (1, "fake")
    [end] = bench.session.of(PutEnd)
    assert (end.puts, end.landed, end.uncertain) == ((7,), (1,), (0,))
    assert end.checksums == (checksum([memoryview(VALUE)]),)


async def test_where_the_fabric_saw_no_bytes_the_writer_sums_them_itself():
    bench = bench_with([grant(7)])
    bench.router.sum_seen = False
    await put(bench, job())
    assert bench.session.of(PutEnd)[0].checksums == (checksum([memoryview(VALUE)]),)


async def test_p7_what_was_granted_is_committed_before_the_rest_is_waited_for():
    bench = bench_with([grant(7), Pending(4, False), Existing(2)], waits=[[grant(9, 64)]])
    results = await put(bench, job(b"a"), job(b"b"), job(b"c"))
    kinds = [type(command) for command in bench.session.sent]
    assert kinds == [PutStart, PutEnd, PutWait, PutEnd]
    assert [result.existed for result in results] == [False, False, True]
    assert bench.statistics.puts_waited == 1


async def test_p7_a_queued_key_that_gets_no_room_ends_with_the_masters_reason():
    full = ErrorInfo.of(PoolFull("leases hold everything", leased_bytes=5))
    bench = bench_with([Pending(4, False)], waits=[[Pending(4, False)], [full]])
    [result] = await put(bench, job())
    assert isinstance(result, PoolFull) and result.fields["leased_bytes"] == 5
    assert not bench.session.of(PutForget)


async def test_one_copy_that_failed_is_degraded_and_named_certain_or_not():
    for settled, uncertain in ((True, 0), (False, 2)):
        bench = bench_with([grant(7, both=True)])

        def before(operation, settled=settled):
            if operation.segment is OTHER:
                return Outcome(error=Unavailable("gone"), settled=settled)
            return None

        bench.router.before = before
        [result] = await put(bench, job(), replicas=2)
        assert (result.replicas, result.degraded) == (1, True)
        [end] = bench.session.of(PutEnd)
        assert (end.landed, end.uncertain) == ((1,), (uncertain,))


async def test_fewer_copies_than_required_are_revoked_and_the_put_is_tried_anew():
    bench = bench_with([grant(7, both=True)], [grant(8, both=True)])
    failing = [True]

    def before(operation):
        if operation.segment is OTHER and failing:
            failing.pop()
            return Outcome(error=Unavailable("gone"), settled=False)
        return None

    bench.router.before = before
    [result] = await put(bench, job(), replicas=2, min_replicas=2)
    assert (result.replicas, result.degraded) == (2, False)
    [revoke] = bench.session.of(PutRevoke)
    assert (revoke.puts, revoke.uncertain) == ((7,), (2,))
    assert bench.statistics.put_retries == 1


async def test_a_put_whose_copies_all_fail_tells_why_after_a_bounded_number_of_tries():
    bench = bench_with([grant(7)])
    bench.router.before = lambda operation: Outcome(error=Unavailable("no route to n0"))
    [result] = await put(bench, job())
    assert isinstance(result, TransferFailed) and "no route to n0" in str(result)
    assert len(bench.session.of(PutStart)) == 3


async def test_p2_a_cancelled_write_that_ends_in_time_is_certain():
    bench = bench_with([grant(7)])
    begun, go = asyncio.Event(), asyncio.Event()

    async def before(operation):
        begun.set()
        await go.wait()

    bench.router.before = before
    task = asyncio.ensure_future(put(bench, job()))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await bench.end()
    [revoke] = bench.session.of(PutRevoke)
    assert (revoke.puts, revoke.uncertain) == ((7,), (0,))


async def test_p2_a_write_that_had_to_be_torn_off_is_uncertain_on_every_copy(monkeypatch):
    monkeypatch.setattr("pykvpool.client.writer.CANCEL_GRACE_S", 0.01)
    bench = bench_with([grant(7, both=True)])
    begun, drained = asyncio.Event(), []

    async def before(operation):
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            drained.append(True)

    bench.router.before = before
    task = asyncio.ensure_future(put(bench, job(), replicas=2))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert drained
    await bench.end()
    [revoke] = bench.session.of(PutRevoke)
    assert (revoke.puts, revoke.uncertain) == ((7,), (3,))


async def test_p2_a_put_that_is_cancelled_twice_is_over_only_when_the_fabric_has_drained():
    """Until then its fabric may still look at the caller's bytes. (The second cancellation used to end the wait.)"""
    bench = bench_with([grant(7)])
    begun, go, order = asyncio.Event(), asyncio.Event(), []

    async def before(operation):
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await go.wait()
            order.append("drained")

    bench.router.before = before
    task = asyncio.ensure_future(put(bench, job()))
    task.add_done_callback(lambda done: order.append("over"))
    await begun.wait()
    for _ in range(3):
        task.cancel()  # the first lets the write finish, the next tears it off, others change nothing
        for _ in range(20):
            await asyncio.sleep(0)
    assert order == []
    go.set()
    await asyncio.wait([task])
    await bench.end()
    assert order == ["drained", "over"]
    assert [revoke.uncertain for revoke in bench.session.of(PutRevoke)] == [(1,)]


async def test_p2_a_revoke_that_does_not_get_through_is_said_again_until_it_does(monkeypatch):
    """A master that was stopped for longer than clean-up may take, while the session lived on: the extents of a put
    that ran out of time meanwhile stayed in quarantine for as long as the client did."""
    monkeypatch.setattr("pykvpool.client.link.INSIST_PAUSE_S", 0)
    bench = bench_with([grant(7)])
    bench.router.before = lambda operation: Outcome(error=Unavailable("broke"), settled=False)
    bench.session.script[PutRevoke] = [DeadlineExceeded("no answer"), Unavailable("no connection"), Done()]
    [result] = await put(bench, job(), min_replicas=1)
    assert isinstance(result, TransferFailed)
    assert set(bench.session.of(PutRevoke)) == {PutRevoke((7,), (1,))}
    assert len(bench.session.of(PutRevoke)) >= 3
    assert bench.session.said_goodbye


async def test_p2_who_could_not_say_what_may_still_land_does_not_say_goodbye(monkeypatch):
    monkeypatch.setattr("pykvpool.client.link.CLEANUP_TIMEOUT_S", 0.01)
    bench = bench_with([grant(7)])
    bench.router.before = lambda operation: Outcome(error=Unavailable("broke"), settled=False)
    bench.session.script[PutRevoke] = [DeadlineExceeded("no answer")]
    await put(bench, job(), min_replicas=1)
    assert bench.session.said_goodbye is False


async def test_p2_a_revoke_that_was_ended_before_it_began_was_not_said_either():
    bench = Bench({PutRevoke: [Done()]})
    bench.session.connected = False  # so the close does not wait for clean-up
    bench.link.tell(PutRevoke((7,), (1,)), bench.link.life)
    await bench.end()
    assert bench.session.sent == []
    assert bench.session.said_goodbye is False


async def test_clean_up_that_was_ended_before_it_began_leaves_nothing_that_was_never_awaited():
    bench = Bench({PutForget: [Done()], PutRevoke: [Done()]})
    bench.session.connected = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bench.link.tell(PutForget((4,)), bench.link.life)
        bench.link.tell(PutRevoke((7,), (1,)), bench.link.life)
        await bench.end()
        gc.collect()
    assert [str(each.message) for each in caught] == []


async def test_a_grant_that_was_never_begun_is_certain():
    bench = bench_with([grant(7)])

    def late(command):
        bench.clock.ms += 40_000
        return PutStarted((grant(7),))

    bench.session.script[PutStart] = [late]
    with pytest.raises(DeadlineExceeded):
        await put(bench, job())
    await bench.end()
    [revoke] = bench.session.of(PutRevoke)
    assert (revoke.puts, revoke.uncertain) == ((7,), (0,))


async def test_a_cancelled_wait_gives_its_tickets_up():
    bench = bench_with([Pending(4, False)])
    waiting = asyncio.Event()

    async def wait(command):
        waiting.set()
        await asyncio.sleep(60)

    bench.session.script[PutWait] = [wait]
    task = asyncio.ensure_future(put(bench, job()))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await bench.end()
    assert bench.session.of(PutForget) == [PutForget((4,))]


async def test_a_huge_batch_is_written_and_committed_in_groups(monkeypatch):
    monkeypatch.setattr("pykvpool.client.writer.GROUP_BYTES", 2 * len(VALUE))
    bench = bench_with([grant(7 + i, 64 * i) for i in range(5)])
    results = await put(bench, *(job(bytes([i])) for i in range(5)))
    assert [len(end.puts) for end in bench.session.of(PutEnd)] == [2, 2, 1]
    assert all(result.replicas == 1 for result in results)


async def test_a_put_that_is_undecided_when_its_deadline_has_passed_ends_and_gives_its_ticket_back():
    bench = bench_with([Pending(3, False)])

    def undecided(_command):
        bench.clock.ms = bench.deadline_ms
        return PutStarted((Pending(3, False),))

    bench.session.script[PutWait] = [undecided]
    [result] = await put(bench, job())
    assert isinstance(result, DeadlineExceeded)
    assert [forget.tickets for forget in bench.session.of(PutForget)] == [(3,)]
    assert len(bench.session.of(PutWait)) == 1


async def test_the_masters_reason_why_there_was_no_room_is_waited_for_a_moment_beyond_the_deadline():
    bench = bench_with([Pending(3, False)], waits=[[ErrorInfo.of(PoolFull("all is pinned"))]])
    [result] = await put(bench, job())
    assert isinstance(result, PoolFull)
    [wait] = bench.session.of(PutWait)
    assert wait.timeout_ms > 30_000


async def test_p8_a_put_whose_node_went_under_it_is_started_anew_on_another():
    went_before = [ErrorInfo.of(SegmentGone("the segment went before its extents were told"))]
    bench = bench_with(went_before, [grant(7)], [grant(8, 64)])
    went_while_writing = Done((ErrorInfo.of(StalePut("put 7 is not open any more")),))
    bench.session.script[PutEnd] = [went_while_writing, Done()]
    [result] = await put(bench, job())
    assert result.replicas == 1
    assert [end.puts for end in bench.session.of(PutEnd)] == [(7,), (8,)]
    assert bench.statistics.put_retries == 2
