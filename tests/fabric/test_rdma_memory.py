"""Memory that cards may touch: registered once, in chunks, for as long as it is used; staged where that is cheaper."""

from __future__ import annotations

import asyncio
import errno
import random
import resource
from collections.abc import Callable

import pytest

from pykvpool.errors import ConfigError, Unavailable
from pykvpool.fabric.base import Peer, Read, Write
from pykvpool.fabric.rdma import registration
from pykvpool.fabric.rdma.staging import LARGE_SLOT_BYTES, LARGE_SLOTS, SMALL_SLOT_BYTES, Staging
from pykvpool.fabric.verbs import VerbsError
from pykvpool.memory import locked
from pykvpool.model.ids import PutId
from tests.fabric.bench import jump
from tests.fabric.fake_verbs import FakeVerbs
from tests.fabric.rdma_stage import MIB, TIMEOUT_S, stage, turns, until


async def test_a_registered_buffer_is_registered_with_the_card_once_however_often_it_is_used() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        buffer = bytearray(4 * MIB)
        registered = here.buffers.register(buffer)
        before = here.near[0].calls["register"]
        view = memoryview(buffer)
        for turn in range(5):
            piece = view[turn * 100_000 : turn * 100_000 + 300_000]
            write = Write(here.segment, 0, 300_000, [piece], PutId(1))
            (outcome,) = await here.client.write([write], TIMEOUT_S)
            assert outcome.error is None
        assert here.near[0].calls["register"] == before + 1
        regions = len(here.near[0].regions)
        here.buffers.unregister(registered)
        assert len(here.near[0].regions) == regions - 1, "its memory is the user's own again"


async def test_p2_a_buffer_that_is_taken_back_mid_transfer_stays_registered_until_its_end() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        buffer = bytearray(b"\xab" * MIB)
        registered = here.buffers.register(buffer)
        here.hold()
        writing = asyncio.ensure_future(here.write(0, buffer))
        await until(lambda: here.under_way)
        regions = len(here.near[0].regions)
        here.buffers.unregister(registered)
        assert len(here.near[0].regions) == regions
        here.release()
        assert (await writing).error is None
        await turns()
        assert len(here.near[0].regions) == regions - 1
        assert here.memory.view[:MIB] == buffer


async def test_a_dead_device_is_closed_although_memory_that_was_taken_back_is_moved_by_another() -> None:
    async with stage() as here:
        link = await here.connected()
        buffer = bytearray(random.Random(13).randbytes(8 * MIB))
        registered = here.buffers.register(buffer)
        here.hold()
        writing = asyncio.ensure_future(here.write(0, buffer))
        await until(lambda: all(card.under_way for card in here.near))
        here.buffers.unregister(registered)
        here.near[0].drop()
        await until(lambda: link.lanes == 1)
        await until(lambda: not here.near[0].contexts)
        assert not writing.done()
        here.release()
        assert (await writing).error is None
        assert here.memory.view[: len(buffer)] == buffer


async def test_other_memory_is_registered_for_its_call_alone_where_it_is_large_and_not_at_all_where_it_is_small() -> (
    None
):
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        regions = set(here.near[0].regions)
        here.hold()
        large = asyncio.ensure_future(here.write(0, bytes(MIB)))
        small = asyncio.ensure_future(here.write(2 * MIB, bytes(1000)))
        await until(lambda: here.under_way == 4)
        assert len(here.near[0].regions) == len(regions) + 1
        here.release()
        for writing in (large, small):
            assert (await writing).error is None
        assert set(here.near[0].regions) == regions


async def test_what_the_card_refuses_to_register_is_copied_instead(caplog: pytest.LogCaptureFixture) -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        data = random.Random(5).randbytes(3 * MIB)
        for _ in range(4):
            here.near[0].refuse_next_registration(errno.ENOMEM)
        assert (await here.write(0, data)).error is None
        assert here.memory.view[: len(data)] == data
        assert await here.read(0, len(data)) == data
    assert "near0 refuses to register 3145728 bytes" in caplog.text
    assert "copied through staging buffers from now on" in caplog.text


async def test_a_card_that_takes_no_memory_at_all_leaves_the_transfer_to_the_others() -> None:
    async with stage() as here:
        here.near[0].set_limits(max_mr=0)
        assert (await here.write(0, b"by the other")).error is None
        link = await here.connected()
        assert link.lanes == 1
        here.near[0].set_limits(max_mr=1000)


async def test_with_no_card_that_takes_memory_a_transfer_is_unavailable_and_says_why() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        here.near[0].set_limits(max_mr=0)
        error = (await here.write(0, b"x")).error
        assert isinstance(error, Unavailable)
        assert "near0 refuses to register" in error.message


async def test_an_owners_card_that_refuses_a_mount_is_left_out_and_if_all_do_the_mount_fails() -> None:
    async with stage() as here:
        here.far[0].refuse_next_registration()
        _, here.segment = here.mount(MIB)
        assert (await here.write(0, b"by the other")).error is None
        for card in here.far:
            card.refuse_next_registration()
        with pytest.raises(ConfigError, match="far0 refuses to register 1048576 bytes"):
            here.mount(MIB)
        assert all(len(card.regions) <= 2 for card in here.far), "nothing of the mount stays registered"


async def test_a_card_that_refused_a_mount_is_asked_again_later() -> None:
    """It came back while its tables, or what may be locked, were used up by others."""
    async with stage(near=("near0",), far=("far0",)) as here:
        link = await here.connected()
        here.far[0].drop()
        await until(lambda: not here.far[0].contexts)
        await until(lambda: not link.lanes)
        here.far[0].gone = False
        here.far[0].refuse_next_registration(errno.ENOMEM)
        outcome = await here.write(0, b"too early")
        assert isinstance(outcome.error, Unavailable)
        jump(60)
        assert (await here.write(0, b"in time")).error is None


async def test_a_registration_that_is_refused_half_way_leaves_nothing_behind() -> None:
    def small(verbs: FakeVerbs) -> None:
        verbs["near0"].set_limits(max_mr_size_bytes=MIB)

    async with stage(near=("near0",), far=("far0",), prepare=small) as here:
        await here.connected()
        card = here.near[0]
        before = set(card.regions)
        for number in (0, 0, errno.ENOMEM):
            card.refuse_next_registration(number)
        data = random.Random(12).randbytes(4 * MIB)
        assert (await here.write(0, data)).error is None
        assert here.memory.view[: len(data)] == data
        assert set(card.regions) == before


@pytest.mark.parametrize("limits", [{"max_mr_size_bytes": MIB}, {"max_mr_size_bytes": 5 * 4096}, {"max_sge": 1}])
async def test_memory_over_a_devices_limit_is_registered_in_chunks_and_moves_like_any_other(
    limits: dict[str, int],
) -> None:
    def small(verbs: FakeVerbs) -> None:
        for name in ("near0", "far0", "far1"):
            verbs[name].set_limits(**limits)
        verbs["far1"].set_limits(max_mr_size_bytes=2 * MIB)  # another limit on another rail: one cut for both

    async with stage(near=("near0", "near1"), far=("far0", "far1"), prepare=small, size_bytes=4 * MIB) as here:
        # The slots are memory of ours that no small device takes in one: they are registered in chunks as well.
        await here.connected()
        draw = random.Random(6)
        data = bytearray(draw.randbytes(3 * MIB + 5))
        here.buffers.register(data)
        assert (await here.write(4093, data)).error is None
        assert here.memory.view[4093 : 4093 + len(data)] == data
        into = [bytearray(size) for size in (1, 70_000, 300_001, 8191, 1_000_000, 3)]
        for piece in into[2:5]:
            here.buffers.register(piece)
        length = sum(map(len, into))
        read = Read(here.segment, 4093, length, [memoryview(piece) for piece in into])
        (outcome,) = await here.client.read([read], TIMEOUT_S)
        assert outcome.error is None
        assert b"".join(into) == data[:length]


async def test_slots_are_waited_for_and_all_come_back() -> None:
    async with stage(near=("near0",), far=("far0",), queue_pairs=2) as here:
        await here.connected()
        # More plain memory than there are slots for, in pieces too small to be registered.
        pieces = [random.Random(number).randbytes(200_000) for number in range(3 * LARGE_SLOTS)]
        writes = [here.to_write(number * 200_000, piece) for number, piece in enumerate(pieces)]
        outcomes = await asyncio.gather(*(here.client.write([write], TIMEOUT_S) for write in writes))
        assert all(outcome.error is None for (outcome,) in outcomes)
        assert here.memory.view[: 200_000 * len(pieces)] == b"".join(pieces)
        staging = here.client._memory.staging
        slots = [staging.take(LARGE_SLOT_BYTES) for _ in range(LARGE_SLOTS)]
        assert all(slots)
        assert staging.take(LARGE_SLOT_BYTES) is None
        for slot in slots:
            staging.give_back(slot)  # type: ignore[arg-type]


def test_small_slices_take_small_slots_while_there_are_any() -> None:
    staging = Staging()
    small, large = staging.take(SMALL_SLOT_BYTES), staging.take(SMALL_SLOT_BYTES + 1)
    assert small is not None
    assert large is not None
    assert (small.view.nbytes, large.view.nbytes) == (SMALL_SLOT_BYTES, LARGE_SLOT_BYTES)
    for slot in (small, large):
        slot.view.release()
    staging.close()


# -- the limit on locked memory ------------------------------------------------------------------------------------


@pytest.fixture
def no_privilege(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A process that may lock so many bytes and has no privilege to lock more."""
    monkeypatch.setattr(locked, "may_lock_any", lambda _proc: False)

    def limit(size_bytes: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _which: (size_bytes, size_bytes))

    return limit


async def test_a_node_that_may_not_lock_its_memory_is_told_how_to_mend_it_before_any_card_is_asked(
    no_privilege: Callable[[int], None],
) -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        here.verbs.pins_memory = True
        no_privilege(64 * 1024)
        before = here.far[0].calls["register"]
        with pytest.raises(ConfigError, match="memory is 65536 bytes: raise it: 'ulimit -l unlimited'") as refusal:
            here.mount(MIB)
        assert "LimitMEMLOCK=infinity" in refusal.value.message
        assert "\n" not in refusal.value.message
        assert here.far[0].calls["register"] == before


async def test_a_node_with_room_for_fewer_cards_than_it_has_says_so(
    no_privilege: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(near=("near0",), far=("far0", "far1")) as here:
        here.verbs.pins_memory = True
        no_privilege(MIB + MIB // 2)
        here.mount(MIB)
        assert "not every one of 2 devices will serve 1048576 bytes" in caplog.text
        assert "ulimit -l unlimited" in caplog.text


async def test_a_client_that_may_not_lock_its_slots_says_so_when_it_starts(
    no_privilege: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(near=("near0", "near1"), far=("far0",)) as here:
        here.verbs.pins_memory = True
        no_privilege(8 * MIB)
        here.another(Peer("second", 2))
        [line] = [record.getMessage() for record in caplog.records if "locked memory" in record.getMessage()]
        assert "with each of 2 devices: the limit on locked memory is 8388608 bytes: raise it: 'ulimit -l" in line
        no_privilege(64 * MIB)
        caplog.clear()
        here.another(Peer("third", 3))
        assert not caplog.records


@pytest.mark.parametrize("how", ["limit", "refusal"])
async def test_a_registered_buffer_that_the_cards_cannot_have_is_moved_all_the_same(
    how: str, no_privilege: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(far=("far0",)) as here:
        await here.connected()
        data = bytearray(random.Random(4).randbytes(4 * MIB))
        registered = here.buffers.register(data)
        regions = [set(card.regions) for card in here.near]
        if how == "limit":
            here.verbs.pins_memory = True
            no_privilege(6 * MIB)  # it would be known to two cards
        else:
            here.near[1].refuse_next_registration(errno.ENOMEM)
        for turn in range(3):
            piece = memoryview(data)[turn * MIB : turn * MIB + 200_000]
            write = Write(here.segment, 0, 200_000, [piece], PutId(1))
            [outcome] = await here.client.write([write], TIMEOUT_S)
            assert outcome.error is None
            assert here.memory.view[:200_000] == piece
        assert [set(card.regions) for card in here.near] == regions
        [line] = [record.getMessage() for record in caplog.records if "not registered with the cards" in record.message]
        assert ("ulimit -l unlimited" in line) == (how == "limit")
        # It is the user's to try again.
        here.buffers.unregister(registered)
        here.buffers.register(data)
        no_privilege(64 * MIB)
        assert (await here.write(0, data)).error is None
        assert [len(card.regions) for card in here.near] == [len(old) + 1 for old in regions]


def test_a_refusal_for_want_of_locked_memory_names_the_limit(no_privilege: Callable[[int], None]) -> None:
    no_privilege(4096)
    error = registration.explain(VerbsError("register", "card0", errno.ENOMEM, "Cannot allocate memory"), 8192)
    assert "the limit on locked memory is 4096 bytes" in error.message
    no_privilege(resource.RLIM_INFINITY)
    error = registration.explain(VerbsError("register", "card0", errno.ENOMEM, "Cannot allocate memory"), 4096)
    assert "no room for more registrations" in error.message
