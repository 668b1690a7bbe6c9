"""Things that end at a time, by time: a heap that is never searched.

An entry is a hint. Whoever owns the thing says through `deadline_of` when it really ends: None (it is over, drop the
entry), or a later time (it was renewed, come back then). So renewing and cancelling cost nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

#: Packed entries hold the id in their lower half.
_ID_BITS = 64
_ID_MASK = (1 << _ID_BITS) - 1
#: The heap is rebuilt when more than half of it, and more than this many entries, are of things that are over.
STALE_ENTRIES = 1_024


class Deadlines:
    """ids by deadline, in milliseconds of the core's clock."""

    __slots__ = ("_count", "_deadline_of", "_heap")

    def __init__(self, deadline_of: Callable[[int], int | None], count: Callable[[], int]) -> None:
        """`deadline_of(id)`: see above. `count()`: how many things are alive, to bound stale entries."""
        self._deadline_of = deadline_of
        self._count = count
        self._heap: list[int] = []

    def add(self, ident: int, deadline: int) -> None:
        heappush(self._heap, deadline << _ID_BITS | ident)
        if len(self._heap) > 2 * self._count() + STALE_ENTRIES:
            alive = {entry & _ID_MASK for entry in self._heap}
            entries = ((self._deadline_of(ident), ident) for ident in alive)
            self._heap = [when << _ID_BITS | ident for when, ident in entries if when is not None]
            heapify(self._heap)

    def next(self) -> int | None:
        """The earliest real deadline, or None."""
        while self._heap:
            entry = self._heap[0]
            ident = entry & _ID_MASK
            real = self._deadline_of(ident)
            if real is not None and real <= entry >> _ID_BITS:
                return real
            heappop(self._heap)
            if real is not None:
                heappush(self._heap, real << _ID_BITS | ident)
        return None

    def pop_due(self, now: int) -> int | None:
        """One id whose deadline has come, or None. The caller ends the thing, or adds it again."""
        deadline = self.next()
        if deadline is None or deadline > now:
            return None
        return heappop(self._heap) & _ID_MASK
