"""The staging ring: slots go to whoever asked first, whole, and never to two at once."""

from __future__ import annotations

import asyncio
import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import Closed, GpuFailed, InternalError
from pykvpool.memory.cuda_ring import StagingRing
from pykvpool.memory.device import DevicePiece

SLOT = 16


def make(slots: int = 4) -> StagingRing:
    memory = (ctypes.c_char * (SLOT * slots))()
    return StagingRing(ctypes.addressof(memory), memoryview(memory).cast("B"), SLOT)


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_pieces_are_laid_out_in_slots_one_after_another() -> None:
    ring = make()
    first = await ring.acquire(1)
    slots = await ring.acquire(2)
    layout = slots.lay_out([memoryview(b"host"), DevicePiece(1000, 20), DevicePiece(2000, 5)])
    base = first.lay_out([DevicePiece(0, 1)]).runs[0].host
    assert [(run.device, run.host - base, run.size_bytes) for run in layout.runs] == [
        (1000, SLOT, 16),
        (1016, 2 * SLOT, 4),
        (2000, 2 * SLOT + 4, 5),
    ]
    assert [piece.nbytes for piece in layout.pieces] == [4, 16, 4, 5]
    assert bytes(layout.pieces[0]) == b"host"


async def test_each_operation_begins_on_a_slot_of_its_own() -> None:
    ring = make()
    pieces = [DevicePiece(1000, 3)], [DevicePiece(2000, SLOT)]
    slots = await ring.acquire(sum(ring.slots_for(each) for each in pieces))
    first, second = (slots.lay_out(each) for each in pieces)
    assert second.runs[0].host - first.runs[0].host == SLOT
    with pytest.raises(InternalError, match="as many slots as it needs"):
        slots.lay_out([DevicePiece(3000, 1)])


async def test_slots_are_given_in_the_order_of_asking_and_all_at_once() -> None:
    ring = make(4)
    held = await ring.acquire(3)
    large = asyncio.create_task(ring.acquire(2))
    small = asyncio.create_task(ring.acquire(1))
    await turn()
    assert not large.done() and not small.done()  # one slot is free, but the large one asked first
    ring.release(held)
    assert len((await large).numbers) == 2 and len((await small).numbers) == 1
    assert not set(large.result().numbers) & set(small.result().numbers)


async def test_who_gives_up_waiting_lets_the_next_one_in() -> None:
    ring = make(2)
    held = await ring.acquire(1)
    large = asyncio.create_task(ring.acquire(2))
    small = asyncio.create_task(ring.acquire(1))
    await turn()
    large.cancel()
    await small
    assert ring.taken == 2
    ring.release(held)
    ring.release(small.result())
    assert ring.taken == 0


async def test_slots_that_were_given_to_somebody_who_was_just_cancelled_come_back() -> None:
    ring = make(1)
    held = await ring.acquire(1)
    waiting = asyncio.create_task(ring.acquire(1))
    await turn()
    ring.release(held)  # its future is done, but it has not run yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ring.taken == 0


async def test_a_broken_ring_keeps_what_is_taken_and_tells_everybody_why() -> None:
    ring = make(2)
    held = await ring.acquire(2)
    waiting = asyncio.create_task(ring.acquire(1))
    await turn()
    ring.break_(GpuFailed("the context broke"))
    with pytest.raises(GpuFailed, match="the context broke"):
        await waiting
    ring.release(held)
    assert ring.taken == 2
    with pytest.raises(GpuFailed):
        await ring.acquire(1)


async def test_a_closed_ring_takes_its_slots_back_and_gives_none() -> None:
    ring = make(1)
    held = await ring.acquire(1)
    ring.close()
    with pytest.raises(Closed):
        await ring.acquire(1)
    ring.release(held)
    assert ring.taken == 0
    ring.close()


async def test_slots_are_given_back_once() -> None:
    ring = make()
    slots = await ring.acquire(1)
    ring.release(slots)
    with pytest.raises(InternalError, match="given back once"):
        ring.release(slots)


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "cancel"]), st.integers(0, 7)), max_size=60))
def test_p2_no_slot_is_ever_held_twice_whatever_the_order(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        ring = make(5)
        asked: list[asyncio.Task] = []
        for step, number in steps:
            if step == "take":
                asked.append(asyncio.create_task(ring.acquire(1 + number % 5)))
            elif asked:
                task = asked[number % len(asked)]
                if step == "cancel":
                    task.cancel()
                elif task.done() and not task.cancelled():
                    ring.release(task.result())
                    asked.remove(task)
            if number % 2:
                await turn()
            held = [slot for task in asked if task.done() and not task.cancelled() for slot in task.result().numbers]
            assert len(held) == len(set(held))
        while asked:
            await turn()
            done = [task for task in asked if task.done()]
            for task in done:
                asked.remove(task)
                if not task.cancelled():
                    ring.release(task.result())
        assert ring.taken == 0

    asyncio.run(run())
