"""What breaks under a transfer of the rdma fabric, and what the caller notices of it: nothing, or a typed failure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import pytest

from pykvpool.errors import Closed, SegmentGone, TransferFailed, Unavailable
from pykvpool.fabric.base import Peer
from pykvpool.fabric.rdma.lane import SIGNAL_EVERY, Lane
from pykvpool.fabric.rdma.wire import Disconnected
from pykvpool.fabric.verbs import Access, Opcode, Status, WorkRequest
from tests.fabric.bench import jump
from tests.fabric.fake_verbs import FakeVerbs
from tests.fabric.rdma_stage import MIB, TIMEOUT_S, stage, turns, until

READ, WRITE = Opcode.READ, Opcode.WRITE


@pytest.mark.parametrize("status", [Status.REMOTE_ACCESS, Status.RETRY_EXCEEDED, Status.LOCAL_QP_OPERATION])
@pytest.mark.parametrize("opcode", [READ, WRITE])
async def test_one_failed_request_is_repeated_over_a_new_queue_pair(opcode: Opcode, status: Status) -> None:
    async with stage() as here:
        link = await here.connected()
        data = random.Random(1).randbytes(3 * MIB)
        if opcode is READ:
            here.memory.view[: len(data)] = data
        here.near[0].fail_next(status, opcode)
        if opcode is READ:
            assert await here.read(0, len(data)) == data
        else:
            assert (await here.write(0, data)).error is None
            assert here.memory.view[: len(data)] == data
        jump(60)  # so that what is missing is due
        assert await here.read(0, 3) == data[:3]
        await until(lambda: link.lanes == 2)


@pytest.mark.parametrize("status", [Status.RETRY_EXCEEDED, Status.LOCAL_QP_OPERATION])
@pytest.mark.parametrize("opcode", [READ, WRITE])
async def test_a_request_whose_every_lane_breaks_once_is_not_to_blame(opcode: Opcode, status: Status) -> None:
    """An interface was removed: all queue pairs of its device failed at once, one after the other under one request."""
    async with stage(near=("near0",), far=("far0",), queue_pairs=2) as here:
        await here.connected()
        here.memory.view[:5] = b"hello"
        for _ in range(2):
            here.near[0].fail_next(status, opcode)
        if opcode is READ:
            assert await here.read(0, 5) == b"hello"
        else:
            assert (await here.write(0, b"there")).error is None
            assert here.memory.view[:5] == b"there"


async def test_a_path_that_takes_small_requests_only_is_given_up_before_the_deadline() -> None:
    """Packets of full size are lost: each new queue pair proves itself with a small read, and then breaks."""
    async with stage(near=("near0",), far=("far0",), queue_pairs=2) as here:
        await here.connected()
        for _ in range(100):
            here.near[0].fail_next(Status.RETRY_EXCEEDED, WRITE)
        outcome = await here.write(0, b"a large one")
        assert isinstance(outcome.error, TransferFailed)
        assert outcome.error.fields["status"] == str(Status.RETRY_EXCEEDED)


async def test_a_key_that_is_refused_again_and_again_is_a_failure_with_peer_device_and_status() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        for _ in range(2):
            here.near[0].fail_next(Status.REMOTE_ACCESS, WRITE)
        outcome = await here.write(0, b"wrong key")
        assert isinstance(outcome.error, TransferFailed)
        assert type(outcome.error) is TransferFailed, "an error of ours, that can be rebuilt from its message"
        assert outcome.error.fields == {
            "peer": here.segment.endpoints[0], "device": "near0:1", "status": "remote access error",
        }  # fmt: skip
        assert outcome.settled, "the owner has said that its end is destroyed"
        assert not any(here.memory.view[:9])
        assert (await here.write(0, b"right key")).error is None


async def test_a_key_of_nobody_is_refused_by_the_owners_card_and_asked_for_anew() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        link = await here.connected()
        (lane,) = link._lanes
        lane._remote = replace(lane._remote, rkeys=(7,))
        assert (await here.write(0, b"a new key")).error is None
        assert here.memory.view[:9] == b"a new key"
        assert lane not in link._lanes


async def test_a_wrong_key_costs_its_own_operation_and_no_other() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        # The fourth, and the same again when all have been repeated that were not confirmed.
        for skip in (3, 6):
            here.near[0].fail_next(Status.REMOTE_ACCESS, WRITE, skip=skip)
        batch = [here.to_write(64 * number, bytes([number + 1]) * 64) for number in range(8)]
        outcomes = await here.client.write(batch, TIMEOUT_S)
        failed = [number for number, outcome in enumerate(outcomes) if outcome.error is not None]
        assert failed == [3]
        for number in range(8):
            expected = bytes(64) if number == 3 else bytes([number + 1]) * 64
            assert here.memory.view[64 * number : 64 * (number + 1)] == expected


async def test_a_rail_that_dies_mid_transfer_is_dropped_and_the_rest_goes_on() -> None:
    async with stage() as here:
        link = await here.connected()
        data = random.Random(2).randbytes(12 * MIB)
        here.hold()
        writing = asyncio.ensure_future(here.write(0, data))
        await until(lambda: here.under_way)
        here.near[0].step(2)
        here.near[0].drop()
        await until(lambda: link.lanes == 1)
        here.release()
        assert (await writing).error is None
        assert here.memory.view[: len(data)] == data
        assert await here.read(0, len(data)) == data


async def test_an_owners_rail_that_dies_mid_transfer_is_told_of_at_once() -> None:
    async with stage() as here:
        link = await here.connected()
        data = random.Random(3).randbytes(12 * MIB)
        here.memory.view[: len(data)] = data
        here.hold()
        reading = asyncio.ensure_future(here.read(0, len(data)))
        await until(lambda: here.under_way)
        here.far[1].drop()
        await until(lambda: link.lanes == 1)
        here.release()
        assert await reading == data


async def test_a_port_that_goes_down_is_left_alone_until_it_is_up_again() -> None:
    async with stage() as here:
        link = await here.connected()
        here.near[1].set_port(up=False)
        await until(lambda: link.lanes == 1)
        assert (await here.write(0, b"by the other")).error is None
        here.near[1].set_port(up=True)
        await turns()
        jump(60)
        assert await here.read(0, 12) == b"by the other"
        await until(lambda: link.lanes == 2)


async def test_with_every_rail_lost_a_transfer_fails_as_unavailable_and_another_fabric_may_have_it() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        here.near[0].set_port(up=False)
        await turns()
        outcome = await here.write(0, b"nowhere to go")
        assert isinstance(outcome.error, Unavailable)
        assert "near0:1: the port is down" in outcome.error.message
        assert outcome.settled
        here.near[0].set_port(up=True)
        await turns()
        assert (await here.write(0, b"there again")).error is None


async def test_an_owner_without_a_port_says_so() -> None:
    async with stage() as here:
        await here.connected()
        for card in here.far:
            card.set_port(up=False)
        outcome = await here.write(0, b"x")
        assert isinstance(outcome.error, Unavailable)
        assert "the owner has no rdma port that is up" in outcome.error.message


async def test_p2_a_write_whose_owner_gives_no_word_is_not_settled() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        here.hold()
        writing = asyncio.ensure_future(here.write(0, bytes(MIB)))
        await until(lambda: here.under_way)
        await here.server.close()  # as a node that dies: the line is gone, and with it who could give the word
        outcome = await writing
        assert outcome.error is not None
        assert not outcome.settled


async def test_p2_a_broken_write_is_repeated_on_the_owners_word_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pykvpool.fabric.rdma.session.DISCONNECT_S", 0.05)
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        (session,) = here.server._sessions
        say = session._line.say
        # The owner hangs: it destroys nothing, and says nothing.
        session._line.say = lambda said: None if isinstance(said, Disconnected) else say(said)  # type: ignore[method-assign]
        here.near[0].fail_next(Status.RETRY_EXCEEDED, WRITE)
        outcome = await here.write(0, b"in doubt")
        assert isinstance(outcome.error, TransferFailed)
        assert not outcome.settled
        here.memory.view[:8] = b"readable"
        here.near[0].fail_next(Status.RETRY_EXCEEDED, READ)
        assert await here.read(0, 8) == b"readable", "a read needs nobody's word"


async def test_p2_a_write_over_several_registrations_is_confirmed_in_each_of_them() -> None:
    def small(verbs: FakeVerbs) -> None:
        verbs["far0"].set_limits(max_mr_size_bytes=MIB)

    async with stage(near=("near0",), far=("far0",), prepare=small) as here:
        link = await here.connected()
        (lane,) = link._lanes
        posted: list[WorkRequest] = []
        post = lane._pair.post

        def watched(requests: Sequence[WorkRequest]) -> None:
            posted.extend(requests)
            post(requests)

        lane._pair.post = watched  # type: ignore[method-assign]
        # More registrations than one confirmation has room for.
        assert (await here.write(MIB // 2, bytes(12 * MIB))).error is None
        for place, request in enumerate(posted):
            if request.opcode is WRITE:
                behind = [later.rkey for later in posted[place + 1 :] if later.opcode is READ]
                assert request.rkey in behind
        assert len({request.rkey for request in posted}) == 13


async def test_p2_the_owners_word_is_given_when_its_queue_pair_is_destroyed() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        (broken,) = here.far[0].pairs
        here.near[0].fail_next(Status.RETRY_EXCEEDED, WRITE)
        assert (await here.write(0, b"over another")).error is None
        assert broken not in here.far[0].pairs


@pytest.mark.parametrize("before_the_end", [1, 3, 7, 8])
async def test_p2_a_write_at_the_end_of_a_registration_is_confirmed_within_it(before_the_end: int) -> None:
    """One key does not open what lies behind it: the read that confirms a short write is as short."""

    def small(verbs: FakeVerbs) -> None:
        verbs["far0"].set_limits(max_mr_size_bytes=MIB)

    async with stage(near=("near0",), far=("far0",), prepare=small) as here:
        link = await here.connected()
        lanes = list(link._lanes)
        assert (await here.write(MIB - before_the_end, b"over the end")).error is None
        assert here.memory.view[MIB - before_the_end :][:12] == b"over the end"
        assert list(link._lanes) == lanes, "no queue pair was broken over it"


@pytest.mark.parametrize("depth", [4, 9, 20])
async def test_the_send_queue_does_not_overflow_when_writes_to_many_registrations_are_confirmed(depth: int) -> None:
    """Each registration takes a read, and room for it: the smaller both are, the more often a queue is nearly full."""

    def small(verbs: FakeVerbs) -> None:
        for name in ("near0", "far0"):
            verbs[name].set_limits(max_qp_wr=depth)
        verbs["far0"].set_limits(max_mr_size_bytes=4096)

    async with stage(near=("near0",), far=("far0",), prepare=small, size_bytes=MIB) as here:
        link = await here.connected()
        lanes = list(link._lanes)
        for reads in range(12):
            for writes in range(1, 12):
                here.hold()
                into = [bytearray(1) for _ in range(reads)]
                data = [bytes([number + 1]) * 5 for number in range(writes)]
                moving = asyncio.gather(
                    here.client.read([here.to_read(0, each) for each in into], TIMEOUT_S),
                    here.client.write([here.to_write(4096 * n, each) for n, each in enumerate(data)], TIMEOUT_S),
                )
                await turns(5)
                here.release()
                async with asyncio.timeout(TIMEOUT_S):
                    outcomes = [outcome.error for each in await moving for outcome in each]
                assert outcomes == [None] * (reads + writes)
                assert [here.memory.view[4096 * n :][:5] for n in range(writes)] == data
        assert list(link._lanes) == lanes, "a queue that overflows is broken"


async def test_a_lane_counts_beyond_what_fits_beside_its_number() -> None:
    """A queue pair that lives for days carries more than 2^32 requests."""
    async with stage(near=("near0",), far=("far0",)) as here:
        link = await here.connected()
        (lane,) = link._lanes
        data = random.Random(10).randbytes(64)
        for start in (1 << 32, 1 << 33):
            lane._sequence = start - 300
            for turn in range(3):
                batch = [here.to_write(64 * number, data) for number in range(200)]
                outcomes = await here.client.write(batch, TIMEOUT_S)
                assert [outcome.error for outcome in outcomes] == [None] * len(batch)
                assert await here.read(0, 64) == data, turn
        assert list(link._lanes) == [lane]


async def test_p2_what_a_fence_cut_off_is_settled_and_not_repeated() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        here.hold()
        data = bytearray(b"\xab" * MIB)
        writing = asyncio.ensure_future(here.write(0, data))
        await until(lambda: here.under_way)
        await here.server.fence("peer", 1, here.segment.generation, ban=False)
        here.release()
        outcome = await writing
        assert isinstance(outcome.error, TransferFailed), "the writer begins a new put"
        assert outcome.settled
        assert not any(here.memory.view[:MIB])


async def test_p2_a_write_has_landed_when_a_read_behind_it_has_come_back() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        here.hold()
        writing = asyncio.ensure_future(here.write(0, b"landed?"))
        await until(lambda: here.under_way == 2)
        here.near[0].step(1)
        await turns()
        assert bytes(here.memory.view[:7]) == b"landed?"
        assert not writing.done(), "that the card has it does not say that memory has it"
        here.near[0].step(1)
        assert (await writing).error is None


async def test_p2_a_write_over_two_registrations_has_landed_with_the_last_of_their_reads() -> None:
    def small(verbs: FakeVerbs) -> None:
        verbs["far0"].set_limits(max_mr_size_bytes=MIB)

    async with stage(near=("near0",), far=("far0",), prepare=small) as here:
        link = await here.connected()
        (lane,) = link._lanes
        lane._sequence = SIGNAL_EVERY - 3  # so that the first of the two reads asks for a completion, too
        here.hold()
        writing = asyncio.ensure_future(here.write(MIB - 100, bytes(200)))
        await until(lambda: here.under_way == 4)
        here.near[0].step(3)
        await turns()
        assert not writing.done()
        here.near[0].step(1)
        assert (await writing).error is None


async def test_completions_of_many_lanes_have_room_and_the_room_of_lanes_that_have_gone_is_used_again() -> None:
    def small(verbs: FakeVerbs) -> None:
        verbs["near0"].set_limits(max_qp_wr=64, max_cqe=128)

    async with stage(near=("near0",), far=("far0",), queue_pairs=5, prepare=small) as here:
        link = await here.connected()
        card = here.near[0]
        assert link.lanes == 5
        assert card.calls["completion_queue"] == 3, "two lanes fit into one"
        data = random.Random(11).randbytes(8 * MIB)
        for _ in range(6):
            for pair in list(card.pairs.values()):
                pair.break_down()
            jump(60)
            assert (await here.write(0, data)).error is None
            assert await here.read(0, len(data)) == data
            await until(lambda: link.lanes == 5)
            await turns()
        assert card.calls["completion_queue"] <= 6


@pytest.mark.parametrize("size", [1000, MIB])
async def test_p2_a_cancelled_transfer_gives_its_buffer_back_when_the_card_is_done_with_it(size: int) -> None:
    """Whether the card writes to it, or to a slot from which it is filled."""
    async with stage(near=("near0",), far=("far0",)) as here:
        link = await here.connected()
        here.memory.view[:MIB] = b"\xab" * MIB
        into = bytearray(size)
        here.hold()
        reading = asyncio.ensure_future(here.client.read([here.to_read(0, into)], TIMEOUT_S))
        await until(lambda: here.under_way)
        reading.cancel()
        await turns()
        assert not reading.done(), "the card may still write to it"
        here.release()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert into == b"\xab" * size, "it landed late, while the buffer was the card's"
        assert link.lanes == 1, "nothing had to be destroyed"


@pytest.mark.parametrize("size", [1000, MIB])
async def test_p2_a_card_that_does_not_finish_loses_its_queue_pair_before_the_buffer_is_given_back(
    size: int,
) -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        here.memory.view[:MIB] = b"\xab" * MIB
        here.hold()
        into = bytearray(size)
        reading = asyncio.ensure_future(here.client.read([here.to_read(0, into)], TIMEOUT_S))
        await until(lambda: here.under_way)
        pairs = set(here.near[0].pairs)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not pairs & set(here.near[0].pairs)
        here.release()
        posted = here.near[0].calls["post"]
        assert await here.read(0, 1) == b"\xab", "over a new queue pair"
        assert here.near[0].calls["post"] == posted + 2, "to prove itself, and this one"
        assert not any(into), "nothing is moved for a caller who has gone"


async def test_calling_one_transfer_off_costs_no_other() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        here.memory.view[:MIB] = b"\xab" * MIB
        here.hold()
        into, data = bytearray(MIB), b"\xcd" * MIB
        called_off = asyncio.ensure_future(here.client.read([here.to_read(0, bytearray(MIB))], TIMEOUT_S))
        reading = asyncio.ensure_future(here.client.read([here.to_read(0, into)], TIMEOUT_S))
        writing = asyncio.ensure_future(here.write(2 * MIB, data))
        await until(lambda: here.under_way == 4)
        called_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await called_off
        here.release()
        (outcome,) = await reading
        assert outcome.error is None
        assert into == b"\xab" * MIB
        assert (await writing).error is None
        assert here.memory.view[2 * MIB : 3 * MIB] == data


@pytest.mark.parametrize("status", [Status.REMOTE_ACCESS, Status.RETRY_EXCEEDED])
async def test_a_confirmation_that_fails_again_and_again_ends_its_write(status: Status) -> None:
    """The write itself is never refused, so nobody would be to blame for lanes that break until the deadline."""
    async with stage(near=("near0",), far=("far0",)) as here:
        link = await here.connected()
        posts = []

        def refused(lane: Lane) -> None:
            posts.append(lane)
            lane.rail.device.context.rnic.fail_next(status, READ)  # type: ignore[attr-defined]

        confirm = Lane.confirm

        def watched(lane: Lane) -> None:
            if lane._unconfirmed and lane in link._lanes:
                refused(lane)
            confirm(lane)

        with mock.patch.object(Lane, "confirm", watched):
            outcome = await here.write(0, b"never confirmed")
        assert isinstance(outcome.error, TransferFailed)
        assert outcome.error.fields["status"] == str(status)
        assert outcome.settled
        assert 1 < len(posts) < 5
        assert (await here.write(0, b"confirmed")).error is None


async def test_the_send_queue_never_overflows_and_few_requests_ask_for_a_completion() -> None:
    def small_queues(verbs: object) -> None:
        for name in ("near0", "far0"):
            verbs[name].set_limits(max_qp_wr=32)  # type: ignore[index]

    async with stage(near=("near0",), far=("far0",), prepare=small_queues) as here:
        link = await here.connected()
        (lane,) = link._lanes
        signaled = []
        post = lane._pair.post

        def watched(requests):
            post(requests)
            signaled.extend(request.signaled for request in requests)

        lane._pair.post = watched  # type: ignore[method-assign]
        block = bytes(range(64))
        batch = [here.to_write(64 * number, block) for number in range(3_000)]
        batch_read = [here.to_read(64 * number, bytearray(64)) for number in range(3_000)]
        outcomes, read = await asyncio.gather(
            here.client.write(batch, TIMEOUT_S), here.client.read(batch_read, TIMEOUT_S)
        )
        assert all(outcome.error is None for outcome in [*outcomes, *read])
        assert here.memory.view[: 64 * 3_000] == block * 3_000
        assert list(link._lanes) == [lane], "a queue that overflows is broken"
        assert sum(signaled) < len(signaled) / 4
        assert SIGNAL_EVERY < 32 - 8, "a full queue has a signalled request in it"


async def test_p2_a_readers_queue_pairs_cannot_be_written_through() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        reader = here.another(Peer("reader", 9, writable=False))
        (outcome,) = await reader.read([here.to_read(0, bytearray(1))], TIMEOUT_S)
        assert outcome.error is None
        assert {pair.access for pair in here.far[0].pairs.values()} == {Access.REMOTE_READ}
        await here.connected()
        rights = sorted(pair.access for pair in here.far[0].pairs.values())
        assert rights == [Access.REMOTE_READ, Access.REMOTE_READ | Access.REMOTE_WRITE]
        assert {pair.access for pair in here.near[0].pairs.values()} == {Access.NONE}, "nobody reaches into a peer"


async def test_p5_the_end_of_a_generation_is_the_end_of_its_keys_and_queue_pairs_and_of_no_other() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        _, segment = here.mount(4096)
        here.segment, first = segment, here.segment
        assert (await here.write(0, b"other")).error is None
        await here.server.withdraw(first.generation)
        assert len(here.far[0].regions) == 1
        assert len(here.far[0].pairs) == 1
        assert (await here.write(8, b"other")).error is None
        here.segment = first
        assert isinstance((await here.write(0, b"late")).error, SegmentGone)
        assert not any(here.memory.view[:8])


async def test_closing_amid_everything_leaves_nothing_behind() -> None:
    async with stage() as here:
        await here.connected()
        here.hold()
        writing = asyncio.ensure_future(here.write(0, bytes(8 * MIB)))
        await until(lambda: here.under_way)
        here.near[0].drop()
        await here.client.close()
        assert isinstance((await writing).error, Closed)
