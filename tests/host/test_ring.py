"""The memory between an engine's process and the node: places never overlap, copies are exact, a turn is a turn."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import LimitExceeded, TransferFailed, Unavailable
from pykvpool.host.agent.ring import MAX_PIECES, RingFile, RingMap, places_of
from pykvpool.host.port import BlockGroup, Run
from tests.host.stage import SCOPE, Memory, chain

RING_BYTES = 1 << 16


@pytest.fixture
def ring():
    file = RingFile(RING_BYTES)
    mapped = RingMap(file.fd, file.size_bytes)
    yield file, mapped
    mapped.close()
    file.close()


def test_what_one_end_writes_the_other_reads(ring):
    file, mapped = ring
    memory, copy = Memory(seed=3).fill(), Memory()
    positions = (5, 0, 9)
    source, target = memory.group(chain(10), range(10, 20)), copy.group(chain(10), range(20, 30))
    file.write_from(places_of(source, positions), 128)
    expected = b"".join(memory.block(10 + position) for position in positions)
    assert bytes(mapped.view(128, len(expected))) == expected
    file.read_into(places_of(target, positions), 128)
    assert [copy.block(20 + position) for position in positions] == [memory.block(10 + p) for p in positions]
    assert copy.block(21) == bytes(copy.block_bytes)


def test_more_pieces_than_one_system_call_takes(ring):
    file, _ = ring
    blocks = 2 * MAX_PIECES // 6 + 7
    memory = Memory(blocks=blocks, piece_bytes=24, seed=4).fill()
    copy = Memory(blocks=blocks, piece_bytes=24)
    everything = range(blocks)
    file.write_from(places_of(memory.group(chain(blocks), everything), everything), 0)
    file.read_into(places_of(copy.group(chain(blocks), everything), everything), 0)
    assert all(copy.block(i) == memory.block(i) for i in everything)


def test_pieces_that_touch_are_one():
    whole = BlockGroup(SCOPE, chain(4), (7, 8, 9, 3), (Run(1_000, 10, 10),))
    assert list(places_of(whole, range(4))) == [1_070, 30, 1_030, 10]


def test_a_copy_beyond_the_ring_or_to_nowhere_is_an_error(ring):
    file, _ = ring
    memory = Memory()
    group = memory.group(chain(1), (0,))
    for offset in (-1, RING_BYTES - 1, RING_BYTES):
        with pytest.raises(TransferFailed, match="does not lie within the ring"):
            file.read_into(places_of(group, (0,)), offset)
    with pytest.raises(TransferFailed, match="Bad address"):
        file.read_into(places_of(BlockGroup(SCOPE, chain(1), (0,), (Run(4096, 8, 8),)), (0,)), 0)


def test_a_copy_that_meets_the_end_of_its_memory_half_way_is_an_error(ring):
    """The kernel moves what it can, then says why not the rest."""
    file, _ = ring
    page = 4096
    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    base = libc.mmap(None, 2 * page, 3, 0x22, -1, 0)
    libc.munmap(base + page, page)
    try:
        half = BlockGroup(SCOPE, chain(1), (0,), (Run(base + page // 2, page, page),))
        with pytest.raises(TransferFailed):
            file.read_into(places_of(half, (0,)), 0)
    finally:
        libc.munmap(base, page)


async def test_who_waits_for_a_place_is_served_in_turn(ring):
    _, mapped = ring
    first = await mapped.take(RING_BYTES, 1)
    served = []

    async def want(name: str, block_bytes: int) -> None:
        place = await mapped.take(block_bytes, 4)
        served.append((name, place.blocks))
        mapped.give_back(place)

    tasks = [asyncio.create_task(want(*each)) for each in (("large", RING_BYTES), ("gone", 64), ("small", 64))]
    await asyncio.sleep(0)
    assert served == []
    tasks[1].cancel()
    await asyncio.wait([tasks[1]])
    mapped.give_back(first)
    await asyncio.gather(tasks[0], tasks[2])
    assert served == [("large", 1), ("small", 4)], "a small block does not overtake a large one for ever"


async def test_a_place_that_was_given_to_who_is_cancelled_comes_back(ring):
    _, mapped = ring
    first = await mapped.take(RING_BYTES, 1)
    waiting = asyncio.create_task(mapped.take(RING_BYTES, 1))
    await asyncio.sleep(0)
    mapped.give_back(first)
    waiting.cancel()  # it has the place, and does not know yet
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert (await mapped.take(RING_BYTES, 1)).length == RING_BYTES


async def test_a_block_beyond_the_ring_is_refused(ring):
    _, mapped = ring
    with pytest.raises(LimitExceeded):
        await mapped.take(RING_BYTES + 1, 1)


def test_a_ring_whose_engine_is_gone_is_not_touched(ring):
    _, mapped = ring
    mapped.close()
    with pytest.raises(Unavailable):
        mapped.view(0, 1)


@given(st.lists(st.tuples(st.integers(1, 5_000), st.integers(1, 20)), max_size=60), st.randoms(use_true_random=False))
def test_places_never_overlap_and_all_of_the_ring_comes_back(wishes, chance: random.Random):
    async def play() -> None:
        file = RingFile(RING_BYTES)
        mapped = RingMap(file.fd, file.size_bytes)
        held = []
        for block_bytes, blocks in wishes:
            taking = asyncio.ensure_future(mapped.take(block_bytes, blocks))
            await asyncio.sleep(0)
            while not taking.done():
                mapped.give_back(held.pop(chance.randrange(len(held))))
                await asyncio.sleep(0)
            place = taking.result()
            assert 1 <= place.blocks <= blocks
            assert place.length >= place.blocks * block_bytes
            held.append(place)
            spans = sorted((each.offset, each.offset + each.length) for each in held)
            assert spans[0][0] >= 0 and spans[-1][1] <= RING_BYTES
            assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        for place in held:
            mapped.give_back(place)
        assert (await mapped.take(RING_BYTES, 1)).length == RING_BYTES
        mapped.close()
        file.close()

    asyncio.run(play())
