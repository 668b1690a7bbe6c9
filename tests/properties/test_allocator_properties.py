"""The allocator against a row of cells, each free or taken: same answers to every question, after any history."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pykvpool.core.allocator import Allocator, FreedOverlay
from pykvpool.errors import InternalError
from tests.properties.budgets import budget

CELL = 64
CELLS = 24

lengths = st.integers(1, 6 * CELL)
cells = st.integers(0, CELLS - 1)


def runs_of(taken: list[bool]) -> list[tuple[int, int]]:
    """(first cell, number of cells) of every free run, by place."""
    runs, start = [], 0
    for is_taken, group in groupby(taken):
        count = len(list(group))
        if not is_taken:
            runs.append((start, count))
        start += count
    return runs


class AllocatorAgainstCells(RuleBasedStateMachine):
    """Lengths are in bytes, the model counts cells of one alignment."""

    def __init__(self) -> None:
        super().__init__()
        self.space = Allocator(CELLS * CELL + CELL // 2, CELL)
        self.taken = [False] * CELLS
        #: What was allocated or reserved and not freed: (first cell, length in bytes).
        self.extents: list[tuple[int, int]] = []

    def mark(self, first: int, length: int, taken: bool) -> None:
        for cell in range(first, first + -(-length // CELL)):
            assert self.taken[cell] != taken
            self.taken[cell] = taken

    def is_all(self, first: int, length: int, taken: bool) -> bool:
        end = first + -(-length // CELL)
        return end <= CELLS and all(each == taken for each in self.taken[first:end])

    @rule(length=lengths)
    def allocate(self, length: int) -> None:
        """The shortest run that fits, and of equals the first."""
        need = -(-length // CELL)
        fitting = [(count, start) for start, count in runs_of(self.taken) if count >= need]
        expected = min(fitting)[1] if fitting else None
        assert self.space.find(length) == (None if expected is None else expected * CELL)
        assert self.space.allocate(length) == (None if expected is None else expected * CELL)
        if expected is not None:
            self.mark(expected, length, True)
            self.extents.append((expected, length))

    @rule(first=cells, length=lengths)
    def reserve(self, first: int, length: int) -> None:
        """Exactly these cells if all are free; else a bug is reported, and nothing has changed."""
        if self.is_all(first, length, False):
            self.space.reserve(first * CELL, length)
            self.mark(first, length, True)
            self.extents.append((first, length))
        else:
            with pytest.raises(InternalError):
                self.space.reserve(first * CELL, length)

    @rule(number=st.integers(0, 1_000))
    def free(self, number: int) -> None:
        if self.extents:
            first, length = self.extents.pop(number % len(self.extents))
            self.space.free(first * CELL, length)
            self.mark(first, length, False)

    @rule(first=cells, length=lengths)
    def free_what_is_not_all_taken(self, first: int, length: int) -> None:
        if not self.is_all(first, length, True):
            with pytest.raises(InternalError):
                self.space.free(first * CELL, length)

    @rule(chosen=st.sets(st.integers(0, CELLS)))
    def suppose_some_freed(self, chosen: set[int]) -> None:
        """The overlay names the longest run that there would be, whatever is supposed free in whatever order."""
        overlay, taken = FreedOverlay(self.space), list(self.taken)
        for number in chosen:
            if number < len(self.extents):
                first, length = self.extents[number]
                overlay.add(first * CELL, length)
                for cell in range(first, first + -(-length // CELL)):
                    taken[cell] = False
        runs = {start * CELL: count * CELL for start, count in runs_of(taken)}
        assert overlay.longest == max(runs.values(), default=0)
        if overlay.longest_start >= 0:
            assert runs[overlay.longest_start] == overlay.longest

    @invariant()
    def it_is_the_same_as_the_cells(self) -> None:
        runs = [(start * CELL, count * CELL) for start, count in runs_of(self.taken)]
        assert self.space.runs() == runs
        assert self.space.capacity == CELLS * CELL
        assert self.space.free_bytes == sum(length for _, length in runs)
        assert self.space.largest_free_run == max((length for _, length in runs), default=0)
        starts = {start: start + length for start, length in runs}
        ends = {end: start for start, end in starts.items()}
        for place in range(0, CELLS * CELL + 1, CELL):
            assert self.space.run_starting_at(place) == starts.get(place)
            assert self.space.run_ending_at(place) == ends.get(place)


TestAllocatorAgainstCells = AllocatorAgainstCells.TestCase
TestAllocatorAgainstCells.settings = budget(200)
