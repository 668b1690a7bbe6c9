"""What policies share that order rows by one moment each, such as LRU and FIFO: a lazy heap over a column of moments.

Such a policy says which column is its order, and what an insertion does to it; the rest is here.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykvpool.core.eviction.base import Candidate, Stamps
from pykvpool.core.eviction.lazy_heap import LazyHeap


class HeapOrder:
    """The common part of a `pykvpool.core.eviction.base.Policy`; see there for what each method must do."""

    __slots__ = ("_heap", "_order", "_stamps")

    def __init__(self, stamps: Stamps, order: Stamps) -> None:
        #: When each row was last used.
        self._stamps = stamps
        #: The moment that is each row's place; may be the same column.
        self._order = order
        self._heap = LazyHeap(order.at)

    def insert(self, candidate: Candidate, now: int) -> None:
        self._stamps.set(candidate.row, now)
        if self._order is not self._stamps:
            self._order.set(candidate.row, now)
        self._heap.insert(candidate.row, candidate.depth)

    def touch(self, rows: Iterable[int], now: int) -> None:
        self._stamps.touch(rows, now)

    def remove(self, row: int, evicted: bool) -> None:
        self._heap.drop(row)

    def take(self, now: int) -> int | None:
        return self._heap.take()

    def set_aside(self, row: int) -> None:
        self._heap.drop(row)

    def put_back(self, row: int) -> None:
        self._heap.hold(row)

    def last_used(self, row: int) -> int:
        return self._stamps.at[row]
