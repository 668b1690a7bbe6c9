"""The fake devices keep the same promises as the real ones, and can be told to misbehave."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from pykvpool.fabric.verbs import EventKind, Opcode, QueuePairState, Status, VerbsError
from tests.fabric.fake_verbs import FakeVerbs
from tests.fabric.verbs_conformance import VerbsConformance, data_of, event_of_kind
from tests.fabric.verbs_rig import ALL, Rig, rig_of

READ, WRITE = Opcode.READ, Opcode.WRITE


@pytest.fixture
def verbs() -> FakeVerbs:
    return FakeVerbs("fake0", "fake1")


@pytest_asyncio.fixture
async def rig(verbs: FakeVerbs) -> AsyncIterator[Rig]:
    async with rig_of(verbs, "fake0", "fake1", verbs["fake0"].set_port) as rig:
        yield rig


class TestFakeVerbs(VerbsConformance):
    def freeze(self, rig: Rig) -> None:
        rig.verbs[rig.a.context.name].hold()

    def thaw(self, rig: Rig) -> None:
        rig.verbs[rig.a.context.name].release()


async def test_a_scripted_failure_hits_the_request_it_is_meant_for(rig: Rig, verbs: FakeVerbs) -> None:
    pair, _ = rig.connect()
    verbs["fake0"].fail_next(Status.RETRY_EXCEEDED, READ, skip=1)
    asked = [rig.a.request(opcode, rig.b, 8) for opcode in (WRITE, READ, WRITE, READ, WRITE)]
    done = await rig.run(pair, asked)
    good = Status.SUCCESS
    assert [entry.status for entry in done] == [good, good, good, Status.RETRY_EXCEEDED, Status.FLUSHED]


async def test_held_requests_wait_for_a_step(rig: Rig, verbs: FakeVerbs) -> None:
    pair, _ = rig.connect()
    verbs["fake0"].hold()
    rig.a.memory[0:8] = data_of(8)
    pair.post([rig.a.request(WRITE, rig.b, 4), rig.a.request(WRITE, rig.b, 4, offset=4, remote_offset=4)])
    assert verbs["fake0"].under_way == 2
    assert verbs["fake0"].step() == 1
    assert rig.b.memory[0:8] == data_of(8)[:4] + bytes(4)
    verbs["fake0"].release()
    assert rig.b.memory[0:8] == data_of(8)
    assert len(await rig.a.completed(2)) == 2


async def test_a_dropped_device_breaks_everything_on_it(rig: Rig, verbs: FakeVerbs) -> None:
    pair, peer = rig.connect()
    verbs["fake0"].hold()
    pair.post([rig.a.request(WRITE, rig.b, 8)])
    verbs["fake0"].drop()
    (flushed,) = await rig.a.completed()
    assert flushed.status is Status.FLUSHED
    assert pair.state is QueuePairState.ERROR
    assert peer.state is QueuePairState.RTS, "the other device knows nothing of it"
    assert await event_of_kind(rig, EventKind.DEVICE_FATAL)
    with pytest.raises(VerbsError):
        rig.a.domain.register(rig.a.memory.address, 8, ALL)
    with pytest.raises(VerbsError):
        verbs.open("fake0")


async def test_a_registration_is_refused_when_told_to(rig: Rig, verbs: FakeVerbs) -> None:
    verbs["fake0"].refuse_next_registration(errno.ENOMEM)
    with pytest.raises(VerbsError) as caught:
        rig.a.domain.register(rig.a.memory.address, 8, ALL)
    assert caught.value.errno == errno.ENOMEM
    rig.a.domain.register(rig.a.memory.address, 8, ALL).close()
    verbs["fake0"].set_limits(max_mr_size_bytes=4096)
    with pytest.raises(VerbsError):
        rig.a.domain.register(rig.a.memory.address, 4097, ALL)


async def test_slots_are_free_only_when_a_completion_behind_them_was_polled(rig: Rig) -> None:
    pair, _ = rig.connect(depth=4)
    pair.post([rig.a.request(WRITE, rig.b, 1, signaled=n == 3) for n in range(4)])
    with pytest.raises(VerbsError) as caught:
        pair.post([rig.a.request(WRITE, rig.b, 1)])
    assert (caught.value.errno, caught.value.posted) == (errno.ENOMEM, 0)
    await rig.a.completed()
    pair.post([rig.a.request(WRITE, rig.b, 1, signaled=n == 3) for n in range(4)])
    await rig.a.completed()


async def test_an_overrun_completion_queue_is_an_event(rig: Rig) -> None:
    queue = rig.a.context.completion_queue(2)
    rig.a.completions, old = queue, rig.a.completions
    pair, _ = rig.connect()
    pair.post([rig.a.request(WRITE, rig.b, 1) for _ in range(3)])
    assert await event_of_kind(rig, EventKind.CQ_ERROR)
    old.close()


@pytest.mark.parametrize("mistake", ["own gid", "wrong psn", "another queue pair"])
async def test_packets_from_a_stranger_are_dropped(rig: Rig, mistake: str) -> None:
    qa, qb, qc = rig.a.pair(), rig.b.pair(), rig.b.pair()
    there = rig.b.described(qc if mistake == "another queue pair" else qb, 2 if mistake == "wrong psn" else 1)
    here = rig.a.described(qa, 1)
    if mistake == "own gid":
        there = type(there)(there.number, there.psn, rig.a.gid.address, 0, 4096)
    for pair, end, remote in ((qa, rig.a, there), (qb, rig.b, here)):
        pair.to_init(1, ALL)
        pair.to_ready_to_receive(remote, end.path())
        pair.to_ready_to_send(1, end.path(), retries=None)
    (failed,) = await rig.run(qa, [rig.a.request(WRITE, rig.b, 1)])
    if mistake == "wrong psn":
        # That is what the other way round would send: only it would be dropped.
        assert failed.status is Status.SUCCESS
        qb.post([rig.b.request(WRITE, rig.a, 1)])
        (failed,) = await rig.b.completed()
    assert failed.status is Status.RETRY_EXCEEDED


async def test_some_gids_do_not_work(rig: Rig, verbs: FakeVerbs) -> None:
    verbs["fake0"].bad_gids.add(rig.a.gid.index)
    with pytest.raises(VerbsError, match="RTR"):
        rig.connect()
    verbs["fake0"].bad_gids.clear()
    verbs["fake0"].silent_gids.add(rig.a.gid.index)
    pair, _ = rig.connect()
    (failed,) = await rig.run(pair, [rig.a.request(WRITE, rig.b, 1)])
    assert failed.status is Status.RETRY_EXCEEDED
