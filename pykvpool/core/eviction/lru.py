"""Least recently used, exactly: of equal moments (one batch) the deeper block goes first, as its parent cannot yet."""

from __future__ import annotations

from pykvpool.core.eviction.base import Stamps
from pykvpool.core.eviction.heap_order import HeapOrder


class Lru(HeapOrder):
    """See `pykvpool.core.eviction.base.Policy`. The order is that of the last use."""

    __slots__ = ()

    def __init__(self) -> None:
        stamps = Stamps()
        super().__init__(stamps, stamps)
