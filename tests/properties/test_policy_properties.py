"""Every eviction policy against a list that is sorted anew for each question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from pykvpool.core.eviction import POLICIES
from pykvpool.core.eviction.base import Candidate
from tests.properties.budgets import budget

ROWS = 8


@dataclass
class Line:
    """A row, as the naive list has it."""

    row: int
    depth: int
    born: int
    used: int
    held: bool = True


#: What each policy orders by, the next to go first. Of equal moments the deeper block goes first, then the lower row.
ORDERS: dict[str, Callable[[Line], tuple[int, int, int]]] = {
    "lru": lambda line: (line.used, -line.depth, line.row),
    "fifo": lambda line: (line.born, -line.depth, line.row),
}


def test_every_policy_has_a_naive_order_here() -> None:
    assert set(ORDERS) == set(POLICIES)


rows = st.integers(0, ROWS - 1)


class PolicyAgainstSortedList(RuleBasedStateMachine):
    """Rows are few, so that they are reused all the time; moments stand still often, so that ties are common."""

    policy_name = ""

    def __init__(self) -> None:
        super().__init__()
        self.policy = POLICIES[self.policy_name]()
        self.lines: dict[int, Line] = {}
        self.now = 1

    @rule(by=st.integers(1, 3))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule(row=rows, depth=st.integers(0, 3))
    def insert(self, row: int, depth: int) -> None:
        if row not in self.lines:
            self.policy.insert(Candidate(row, 0, b"h%d" % row, 64, -1, depth), self.now)
            self.lines[row] = Line(row, depth, self.now, self.now)

    @rule(chosen=st.sets(rows, max_size=4))
    def touch(self, chosen: set[int]) -> None:
        """Rows that are set aside count as used all the same."""
        known = [row for row in sorted(chosen) if row in self.lines]
        self.policy.touch(known, self.now)
        for row in known:
            self.lines[row].used = self.now

    @rule(row=rows, evicted=st.booleans())
    def remove(self, row: int, evicted: bool) -> None:
        if self.lines.pop(row, None) is not None:
            self.policy.remove(row, evicted)

    @rule(row=rows)
    def set_aside(self, row: int) -> None:
        if row in self.lines and self.lines[row].held:
            self.policy.set_aside(row)
            self.lines[row].held = False

    @rule(row=rows)
    def put_back(self, row: int) -> None:
        if row in self.lines and not self.lines[row].held:
            self.policy.put_back(row)
            self.lines[row].held = True

    @rule()
    def take(self) -> None:
        held = sorted((line for line in self.lines.values() if line.held), key=ORDERS[self.policy_name])
        assert self.policy.take(self.now) == (held[0].row if held else None)
        if held:
            held[0].held = False

    @rule()
    def take_all_and_put_them_back(self) -> None:
        """A plan that found no room: nothing has changed."""
        held = sorted((line for line in self.lines.values() if line.held), key=ORDERS[self.policy_name])
        taken = [self.policy.take(self.now) for _ in held]
        assert taken == [line.row for line in held]
        assert self.policy.take(self.now) is None
        for row in reversed(taken):
            self.policy.put_back(row)

    @invariant()
    def it_knows_when_each_was_used(self) -> None:
        for line in self.lines.values():
            assert self.policy.last_used(line.row) == line.used


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_policy_names_exactly_what_a_sorted_list_would(name: str) -> None:
    machine = type(f"{name.title()}AgainstSortedList", (PolicyAgainstSortedList,), {"policy_name": name})
    run_state_machine_as_test(machine, settings=budget(200, steps=50))
