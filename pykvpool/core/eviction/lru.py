"""Least recently used, exactly: of equal moments (one batch) the deeper block goes first, as its parent cannot yet."""

from __future__ import annotations

from collections.abc import Iterable

from pykvpool.core.eviction.base import Candidate, Stamps
from pykvpool.core.eviction.lazy_heap import LazyHeap


class Lru:
    """See `pykvpool.core.eviction.base.Policy`."""

    __slots__ = ("_heap", "_stamps")

    def __init__(self) -> None:
        self._stamps = Stamps()
        self._heap = LazyHeap(self._stamps.at)

    def insert(self, candidate: Candidate, now: int) -> None:
        self._stamps.set(candidate.row, now)
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
