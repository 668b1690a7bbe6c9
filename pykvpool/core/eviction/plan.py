"""Making room, exactly: enough, in one piece, on enough nodes, at the cost of as few blocks as the order allows; or
nothing at all. In slices, if it takes many blocks.

A put of S bytes on r nodes needs a run of S contiguous bytes on each of r distinct nodes. `make_room` takes rows in the
evictor's order and supposes their extents free until the runs exist (`window`); then it gives back every row that no
run needs. If the rows run out first, all are given back and nothing has changed.

Between two slices anything may happen, but for one thing: nobody is given space while this goes on, so what is free
stays free. A taken row that is used, leased, pinned, gets a child or goes makes the search *spoiled*: it looks at all
of its rows once more, and goes on from there. Only one that is not spoiled is carried out. A busy pool could spoil a
search for ever; so after a few times its rows are sealed, hidden from everybody, while it ends. Carrying out begins
with the same: from the seal on the rows are as good as gone, whatever comes while they are evicted slice by slice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from pykvpool.core.eviction.base import LOOK_AGAIN, LOOK_ROWS
from pykvpool.core.eviction.window import Room, Supposed
from pykvpool.core.jobs import Pace
from pykvpool.core.state import DurableState

#: Once the put could start, this many more rows are examined to reach all the nodes that were asked for (or the
#: preferred one): a wish must not cost a walk over the whole pool.
WISH_SCAN_ROWS = 128
#: After being spoiled this often a search hides the rows that it has taken.
MAX_SPOILED = 3
#: Units of a slice (see `jobs`) that a search costs as such, taking one row, giving it back, and evicting it.
SEARCH_UNITS = 32
TAKE_UNITS = 8
RESTORE_UNITS = 4
EVICT_UNITS = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a search ended."""

    #: The room was made.
    evicted: bool
    #: The segments, or the space in them, changed meanwhile: what is asked for has to be worked out anew.
    stale: bool
    #: How many rows were looked at.
    examined: int

    @property
    def is_news(self) -> bool:
        """Is it worth while to look again where the put could go?"""
        return self.evicted or self.stale


def make_room(
    room: Room, state: DurableState, pace: Pace, evict: Callable[[int], None]
) -> Generator[None, None, Outcome]:
    """Evict (`evict(row)`) the rows that make the room, children before parents; or none.

    One at a time, and nothing may be allocated until it has ended. Rows that were examined and stay are in their places
    again, but for those that would make no room for anybody: they are left elsewhere until their node is back.
    """
    return _Search(room, state, pace).run(evict)


class _Search:
    """One search under way."""

    def __init__(self, room: Room, state: DurableState, pace: Pace) -> None:
        self._room = room
        self._state = state
        self._evictor = state.evictor
        self._pace = pace
        #: Moment of the step in which it began.
        self._began = state.moment
        self._examined = 0
        self._spoiled_count = 0

    def run(self, evict: Callable[[int], None]) -> Generator[None, None, Outcome]:
        evictor = self._evictor
        needed = yield from self._choose()
        while needed:
            yield from self._give_back(needed)
            if self._is_off():
                needed = set()
            elif self._is_spoiled():
                needed = yield from self._choose()
            else:
                break
        if needed:
            evictor.seal()
            for row in evictor.taken():
                if evictor.is_taken(row):
                    evict(row)
                    if self._pace.spend(EVICT_UNITS):
                        yield
        else:
            yield from self._give_back(needed)
        evictor.end_search()
        return Outcome(bool(needed), self._is_stale(), self._examined)

    def _choose(self) -> Generator[None, None, set[int]]:
        """Take rows until there is room; which of them it needs. None of them: there is no room to be had."""
        while True:
            if self._pace.spend(SEARCH_UNITS):
                yield
            supposed = Supposed(self._room, self._state.catalog)
            if not (yield from self._take(supposed)) or self._is_off():
                return set()
            if not self._is_spoiled():
                needed = yield from supposed.needed_rows(self._evictor.taken(), self._pace)
                if not self._is_spoiled():
                    return needed

    def _is_off(self) -> bool:
        """Has the search become pointless?"""
        return self._pace.cancelled or self._is_stale()

    def _is_stale(self) -> bool:
        """Nothing but the search itself changes anything in the step in which it began."""
        return self._state.moment != self._began and self._room.is_stale(self._state)

    def _is_spoiled(self) -> bool:
        if not self._evictor.spoiled:
            return False
        self._spoiled_count += 1
        if self._spoiled_count >= MAX_SPOILED:
            self._evictor.seal()
        return True

    def _take(self, supposed: Supposed) -> Generator[None, None, bool]:
        """True: with the rows that are taken now, the put could start."""
        evictor, room, pace, count = self._evictor, self._room, self._pace, 0
        evictor.spoiled = False
        for row in evictor.taken():
            # Taken before the search was spoiled; children come before their parents here too.
            if evictor.is_taken(row):
                if evictor.reason_to_stay(row):
                    evictor.restore(row)
                else:
                    count += 1
                    supposed.suppose_free(row)
            if pace.spend(TAKE_UNITS):
                yield
        limit = count + WISH_SCAN_ROWS
        while supposed.node_count < room.wanted and not (supposed.node_count >= room.needed and count >= limit):
            taken = evictor.take(self._state.moment)
            if taken is None:
                break
            units = TAKE_UNITS
            if taken == LOOK_AGAIN:
                units = LOOK_ROWS
                self._examined += LOOK_ROWS
            else:
                before = supposed.node_count
                count += 1
                self._examined += 1
                supposed.suppose_free(taken)
                if before < room.needed <= supposed.node_count:
                    limit = count + WISH_SCAN_ROWS
            if pace.spend(units):
                yield
                if self._is_off():
                    return False
        return supposed.node_count >= room.needed

    def _give_back(self, needed: set[int]) -> Generator[None, None, None]:
        """All taken rows but the needed ones."""
        evictor = self._evictor
        taken = evictor.taken()
        for row in reversed(taken) if len(taken) > len(needed) else ():
            if row in needed or not evictor.is_taken(row):
                continue
            if self._is_elsewhere(row):
                evictor.leave_elsewhere(row)
            else:
                evictor.restore(row)
            if self._pace.spend(RESTORE_UNITS):
                yield

    def _is_elsewhere(self, row: int) -> bool:
        """Would evicting the row make no room for anybody?"""
        segments, table = self._state.segments.by_id, self._state.catalog.replicas
        return not any(
            segments[table.segment[replica]].writable  # type: ignore[index]
            for replica in table.of_object(self._state.catalog.replica[row])
        )
