"""P1 at the reader: no bytes reach the caller but through the gate, and the gate believes nothing it cannot know."""

from __future__ import annotations

import asyncio

import pytest

from pykvpool.client.held import HeldLease
from pykvpool.client.reader import GetJob, Reader, leave
from pykvpool.errors import ChecksumMismatch, DeadlineExceeded, LeaseExpired, TransferFailed, Unavailable
from pykvpool.fabric.base import Outcome
from pykvpool.memory.copying import checksum
from pykvpool.model.commands import GetReplicas, Release, Renew
from pykvpool.model.objects import ObjectInfo, Vouch
from pykvpool.model.replies import Done, ErrorInfo, Located
from tests.client.fakes import OTHER, SEGMENT, Bench, extent

VALUE = b"the committed bytes"
SUM = checksum([memoryview(VALUE)])


def located(*, checksum=SUM, lease_ms=10_000, both=False):
    extents = (extent(SEGMENT, 64, len(VALUE)), *((extent(OTHER, 128, len(VALUE)),) if both else ()))
    return Located((ObjectInfo(3, len(VALUE), checksum, extents),), lease=8, lease_ms=lease_ms)


def bench_with(*replies, renew=None):
    bench = Bench({GetReplicas: list(replies), Release: [Done()], Renew: [renew or Done()]})
    bench.router.memory[99][64 : 64 + len(VALUE)] = VALUE
    bench.router.memory[98][128 : 128 + len(VALUE)] = VALUE
    return bench


async def get(bench):
    target = bytearray(len(VALUE))
    job = GetJob(b"k", "k", lambda size: [memoryview(target)])
    await Reader(bench.link, bench.fabrics, bench.statistics).get(1, [job], bench.deadline_ms)
    await bench.end()
    return job.result, target


async def test_p1_bytes_with_the_committed_checksum_pass():
    bench = bench_with(located())
    result, target = await get(bench)
    assert (result.size_bytes, result.vouch, result.node) == (len(VALUE), Vouch.CHECKSUM, "n0")
    assert target == VALUE
    assert len(bench.session.of(Release)) == 1


async def test_p1_where_no_cpu_saw_the_bytes_the_lease_vouches_and_the_result_says_so():
    bench = bench_with(located())
    bench.router.sum_seen = False
    result, _ = await get(bench)
    assert result.vouch is Vouch.LEASE
    bench = bench_with(located(checksum=None))
    result, _ = await get(bench)
    assert result.vouch is Vouch.LEASE


async def test_p1_other_bytes_are_never_returned_the_next_copy_is_read():
    bench = bench_with(located(both=True))
    bench.router.memory[99][70] ^= 1
    result, target = await get(bench)
    assert (result.node, target) == ("n1", VALUE)
    assert bench.statistics.checksum_mismatches == 1
    assert bench.statistics.replica_retries == 1


async def test_p1_where_no_copy_is_right_the_get_fails():
    bench = bench_with(located(both=True))
    bench.router.memory[99][70] ^= 1
    bench.router.memory[98][130] ^= 1
    result, _ = await get(bench)
    assert isinstance(result, ChecksumMismatch)
    assert "n0" in str(result) and "n1" in str(result)


async def test_p1_a_lease_that_lapsed_during_the_transfer_discards_the_bytes_and_asks_again():
    bench = bench_with(located(), located())
    slow = [True]

    def before(operation):
        if slow.pop() if slow else False:
            bench.clock.ms += 9_501

    bench.router.before = before
    result, _ = await get(bench)
    assert result.vouch is Vouch.CHECKSUM
    assert bench.statistics.leases_lapsed == 1
    assert len(bench.session.of(GetReplicas)) == 2


async def test_p1_the_client_trusts_95_percent_of_a_lease_counted_from_before_it_asked():
    bench = bench_with(located())

    def slow_answer(command):
        bench.clock.ms += 9_500
        return located()

    bench.session.script[GetReplicas] = [slow_answer]
    result, _ = await get(bench)
    assert isinstance(result, LeaseExpired), "the answer alone took 95 % of the lease"


def test_p1_the_gate_refuses_a_lapsed_lease_even_with_a_right_checksum():
    bench = bench_with(located())
    held = HeldLease(bench.link, 8, 10_000, bench.clock.ms - 9_500)
    info = ObjectInfo(3, len(VALUE), SUM, ())
    with pytest.raises(LeaseExpired):
        leave(held, info, Outcome(checksum=SUM))
    bench.link.runtime.offload.close()


async def test_every_replica_is_tried_before_a_get_fails_and_the_error_tells_of_each():
    bench = bench_with(located(both=True))
    bench.router.before = lambda operation: Outcome(error=Unavailable(f"{operation.segment.node} is gone"))
    result, _ = await get(bench)
    assert isinstance(result, TransferFailed)
    assert "n0 is gone" in str(result) and "n1 is gone" in str(result)
    assert len(bench.session.of(GetReplicas)) == 3, "asked anew, within the deadline, a bounded number of times"


async def test_the_lease_is_released_only_after_the_fabric_has_drained():
    bench = bench_with(located())
    order = []

    async def before(operation):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            order.append("drained")

    bench.router.before = before
    bench.session.script[Release] = [lambda command: order.append("released") or Done()]
    task = asyncio.ensure_future(get(bench))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await bench.end()
    assert order == ["drained", "released"]


async def test_a_lapsed_lease_is_never_renewed_by_its_holder():
    bench = bench_with(located())
    held = HeldLease(bench.link, 8, 10_000, bench.clock.ms)
    bench.clock.ms += 9_499
    await held.renew()
    bench.clock.ms += 9_500
    with pytest.raises(LeaseExpired):
        await held.renew()
    assert len(bench.session.of(Renew)) == 1
    await bench.end()


async def test_a_renewal_that_the_master_refuses_is_the_end_of_the_lease():
    refusal = Done((ErrorInfo.of(LeaseExpired("it lapsed")),))
    bench = bench_with(located(), renew=refusal)
    held = HeldLease(bench.link, 8, 10_000, bench.clock.ms)
    with pytest.raises(LeaseExpired):
        await held.renew()
    await bench.end()


async def test_a_get_ends_with_its_deadline():
    bench = bench_with(located())
    bench.deadline_ms = bench.clock.ms
    with pytest.raises(DeadlineExceeded):
        await get(bench)
    await bench.end()


async def test_closing_without_a_master_does_not_wait_for_clean_up():
    bench = bench_with(located())
    never = asyncio.Event()

    async def no_answer(command):
        await never.wait()

    bench.session.script[Release] = [no_answer]
    bench.link.tell(Release((8,)), bench.link.life)
    await asyncio.sleep(0)
    bench.session.connected = False
    async with asyncio.timeout(1):
        await bench.end()


async def test_a_replica_that_failed_a_moment_ago_is_read_last():
    bench = bench_with(located(both=True))
    bench.router.doubted = (SEGMENT,)
    result, target = await get(bench)
    assert (result.node, target) == ("n1", VALUE)
    assert bench.statistics.replica_retries == 0
