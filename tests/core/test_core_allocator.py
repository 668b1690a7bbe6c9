"""The allocator: best fit, lowest offset, whole again when all is back, and never the same byte twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykvpool.core.allocator import Allocator, FreedOverlay
from pykvpool.core.sorted_offsets import CHUNK_OFFSETS, SortedOffsets
from pykvpool.errors import InternalError


def test_extents_are_aligned_and_capacity_is_what_can_be_used() -> None:
    space = Allocator(1_000, 64)
    assert space.capacity == 960
    assert [space.allocate(65), space.allocate(1), space.allocate(64)] == [0, 128, 192]
    assert space.free_bytes == 960 - 128 - 64 - 64


def test_the_shortest_run_that_fits_is_taken_and_of_equals_the_lowest() -> None:
    space = Allocator(64 * 20, 64)
    for _ in range(20):
        space.allocate(64)
    for offset, units in ((1, 3), (6, 2), (10, 2), (14, 5)):
        space.free(offset * 64, units * 64)
    assert space.find(128) == 6 * 64
    assert [space.allocate(128), space.allocate(128), space.allocate(128)] == [6 * 64, 10 * 64, 1 * 64]
    assert space.largest_free_run == 5 * 64


def test_what_was_given_back_becomes_one_run_again() -> None:
    space = Allocator(64 * 4, 64)
    offsets = [space.allocate(64) for _ in range(4)]
    assert space.find(64) is None
    for offset in (offsets[0], offsets[2], offsets[3], offsets[1]):
        assert offset is not None
        space.free(offset, 64)
    assert space.runs() == [(0, 256)]


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 64), (64, 128), (192, 64), (1, 64), (256, 64), (-64, 64), (128, 192)]
)
def test_freeing_what_is_not_taken_is_a_bug_and_said_so(offset: int, length: int) -> None:
    space = Allocator(64 * 4, 64)
    space.reserve(128, 64)
    with pytest.raises(InternalError):
        space.free(offset, length)


def test_reserve_takes_exactly_what_a_fact_says_or_nothing() -> None:
    space = Allocator(64 * 8, 64)
    space.reserve(128, 130)
    assert space.runs() == [(0, 128), (320, 192)]
    for offset, length in ((64, 128), (128, 64), (448, 128)):
        with pytest.raises(InternalError):
            space.reserve(offset, length)
    assert space.runs() == [(0, 128), (320, 192)]


def test_the_choice_depends_on_what_is_free_and_not_on_history() -> None:
    one, other = Allocator(64 * 64, 64), Allocator(64 * 64, 64)
    for _ in range(64):
        one.allocate(64)
    for unit in (9, 3, 4, 40, 41, 42, 20, 63, 0):
        one.free(unit * 64, 64)
    for offset, length in [(1, 2), (5, 4), (10, 10), (21, 19), (43, 20)]:
        other.reserve(offset * 64, length * 64)
    assert one.runs() == other.runs()
    assert [one.allocate(size) for size in (64, 64, 128, 192, 64)] == [
        other.allocate(size) for size in (64, 64, 128, 192, 64)
    ]


def test_the_overlay_foretells_what_freeing_would_join() -> None:
    space = Allocator(64 * 10, 64)
    space.reserve(0, 640)
    space.free(192, 64)
    space.free(384, 64)
    overlay = FreedOverlay(space)
    assert (overlay.longest, overlay.longest_start) == (64, -1)
    overlay.add(0, 64)
    overlay.add(256, 128)
    assert (overlay.longest, overlay.longest_start) == (256, 192)
    overlay.add(64, 128)
    assert (overlay.longest, overlay.longest_start) == (448, 0)
    assert space.runs() == [(192, 64), (384, 64)]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 700)), max_size=120))
def test_space_is_conserved_and_overlays_tell_the_truth(actions: list[tuple[int, int]]) -> None:
    space = Allocator(64 * 50, 64)
    taken: list[tuple[int, int]] = []
    for kind, number in actions:
        if kind < 2:
            offset = space.allocate(number)
            fits = any(length >= space.rounded(number) for _, length in space.runs())
            if offset is not None:
                taken.append((offset, number))
            else:
                assert not fits
        elif taken:
            offset, length = taken.pop(number % len(taken))
            space.free(offset, length)
        runs = sorted(space.runs() + [(offset, space.rounded(length)) for offset, length in taken])
        assert [offset + length for offset, length in runs] == [offset for offset, _ in runs[1:]] + [space.capacity]
        assert space.free_bytes == sum(length for _, length in space.runs())
    overlay = FreedOverlay(space)
    for offset, length in taken[::2]:
        overlay.add(offset, length)
    foretold = overlay.longest
    for offset, length in taken[::2]:
        space.free(offset, length)
    assert foretold == space.largest_free_run


def test_sorted_offsets_stay_sorted_across_many_chunks() -> None:
    offsets = SortedOffsets()
    numbers = [number * 7919 % 10_007 for number in range(6 * CHUNK_OFFSETS)]
    for number in numbers:
        offsets.add(number)
    assert list(offsets) == sorted(numbers)
    for number in numbers[::2]:
        offsets.remove(number)
    left = sorted(numbers[1::2])
    assert list(offsets) == left
    for probe in range(0, 10_007, 97):
        assert offsets.at_or_before(probe) == max((n for n in left if n <= probe), default=-1)
        assert offsets.after(probe) == min((n for n in left if n > probe), default=-1)
    with pytest.raises(InternalError):
        offsets.remove(numbers[0])
