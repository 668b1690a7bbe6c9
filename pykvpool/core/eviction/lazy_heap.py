"""Rows in the order of a column of moments, exact, although a moment may rise at the cost of one array store.

The heap holds at most one entry per row, packed into an integer (moment, depth, row). A row whose moment has risen
since keeps its old entry: too early, never too late. When it comes to the top the entry is replaced by the current one,
so that every touched row is moved at most once per touch, and only if it gets there. A removed row leaves its entry
behind in the same way, and a new object in that row simply inherits it.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush, heapreplace

from pykvpool.core.eviction.base import LOOK_AGAIN, LOOK_ROWS

#: Bits of a packed entry: 2^26 rows, chains up to 8,191 blocks told apart (deeper ones tie), moments above.
#: With the core's moments (51 bits) an entry is an integer of three digits: 48 bytes.
ROW_BITS = 26
DEPTH_BITS = 13
MAX_DEPTH = (1 << DEPTH_BITS) - 1
_ROW_MASK = (1 << ROW_BITS) - 1


class LazyHeap:
    """Held rows by (moment, deeper first, row)."""

    __slots__ = ("_entered", "_heap", "_held", "_moments", "_tie")

    def __init__(self, moments: array[int]) -> None:
        #: Row -> its moment; owned by the policy, must never fall for a row.
        self._moments = moments
        self._heap: list[int] = []
        #: 1: the row has an entry in the heap (its own or one it inherited).
        self._entered = bytearray()
        #: 1: the row is held; an entry of a row that is not is dropped when it surfaces.
        self._held = bytearray()
        #: MAX_DEPTH - depth, so that of equal moments the deeper block comes first: a parent after its children.
        self._tie = array("H")

    def insert(self, row: int, depth: int) -> None:
        if row >= len(self._held):
            more = row + 1 - len(self._held)
            self._held.extend(bytes(more))
            self._entered.extend(bytes(more))
            self._tie.extend([0] * more)
        self._tie[row] = MAX_DEPTH - min(depth, MAX_DEPTH)
        self.hold(row)

    def hold(self, row: int) -> None:
        self._held[row] = 1
        if not self._entered[row]:
            self._entered[row] = 1
            heappush(self._heap, self._entry(row))

    def drop(self, row: int) -> None:
        self._held[row] = 0

    def take(self) -> int | None:
        """The first held row, held no more; None: there is none; `LOOK_AGAIN`: more entries are old than were moved."""
        heap = self._heap
        for _ in range(LOOK_ROWS):
            if not heap:
                return None
            entry = heap[0]
            row = entry & _ROW_MASK
            if not self._held[row]:
                heappop(heap)
                self._entered[row] = 0
                continue
            current = self._entry(row)
            if current > entry:
                heapreplace(heap, current)
                continue
            heappop(heap)
            self._entered[row] = self._held[row] = 0
            return row
        return LOOK_AGAIN

    def _entry(self, row: int) -> int:
        return (self._moments[row] << DEPTH_BITS | self._tie[row]) << ROW_BITS | row
