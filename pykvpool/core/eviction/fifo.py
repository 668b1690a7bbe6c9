"""First in, first out: use does not matter. The floor that every cleverer policy has to beat."""

from __future__ import annotations

from pykvpool.core.eviction.base import Stamps
from pykvpool.core.eviction.heap_order import HeapOrder


class Fifo(HeapOrder):
    """See `pykvpool.core.eviction.base.Policy`. The order is that of insertion, in a column that no touch reaches."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Stamps(), Stamps())
