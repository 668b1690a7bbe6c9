"""P1 at its root: the memories hold, under every readable key, the bytes that belong to that key.

Looked at when an object is committed, and again from time to time. Memory that a fault decayed on purpose is known and
left out: there the checksum has to catch it, which the clients' checker sees.
"""

from __future__ import annotations

from collections.abc import Callable

from pykvpool.model.ids import Generation
from pykvpool.model.keys import Scope
from pykvpool_sim.checkers.ledger import Holding, Ledger, PutEntry
from pykvpool_sim.checkers.verdicts import Verdicts
from pykvpool_sim.fabric import SimMemory

#: Gives the bytes that belong to a key of a scope.
ValueOf = Callable[[Scope, bytes], bytes]


class ContentChecker:
    """Knows all memories that were ever lent, by generation."""

    def __init__(self, value_of: ValueOf, verdicts: Verdicts) -> None:
        self._value_of = value_of
        self._verdicts = verdicts
        self._memories: dict[Generation, SimMemory] = {}
        #: Offsets that decayed, by generation.
        self._decayed: dict[Generation, list[int]] = {}

    def lent(self, memory: SimMemory) -> None:
        self._memories[memory.generation] = memory

    def memory_behind(self, view: memoryview) -> SimMemory | None:
        """The memory that a view shows."""
        return next((memory for memory in self._memories.values() if memory.is_behind(view)), None)

    def decayed(self, memory: SimMemory, offset: int) -> None:
        self._decayed.setdefault(memory.generation, []).append(offset)

    def is_decayed(self, generation: Generation, offset: int, length: int) -> bool:
        return any(offset <= at < offset + length for at in self._decayed.get(generation, ()))

    def check(self, ledger: Ledger, entry: PutEntry) -> None:
        """Every copy of one object, where its memory still exists."""
        expected = self._value_of(ledger.scopes[entry.fact.scope], entry.fact.hash)
        for extent in entry.extents(Holding.COMMITTED):
            segment = ledger.segments.get(extent.segment)
            memory = self._memories.get(segment.fact.generation) if segment is not None else None
            if memory is None or memory.closed or self.is_decayed(memory.generation, extent.offset, extent.length):
                continue
            if memory.view[extent.offset : extent.offset + extent.length] != expected:
                self._verdicts.add(
                    "P1",
                    f"put {entry.fact.put_id} is readable under {entry.fact.hash!r}, but {extent} does not hold its "
                    "bytes",
                    key=entry.fact.hash,
                    put_id=entry.fact.put_id,
                )

    def check_all(self, ledger: Ledger) -> None:
        for put_id in list(ledger.objects.values()):
            self.check(ledger, ledger.puts[put_id])
