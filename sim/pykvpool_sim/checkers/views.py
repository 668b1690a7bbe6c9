"""P1, for those who look at an object where it lies: a view that may be looked at shows the object's bytes.

Nothing is copied, so nothing is summed, and whoever looks may do so at any moment. So it is not left to the workload's
own moments: the checker looks at every view too, whenever something lands in the memory that it shows, and asks the
view itself whether it may still be looked at (`StaleView`: no). And as right bytes are no proof (an extent that was
given up keeps them for a while), a lease over the object has to be in force then, on the master's clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pykvpool.client import View
from pykvpool.errors import StaleView
from pykvpool_sim.checkers.ledger import Holding
from pykvpool_sim.checkers.verdicts import Verdicts
from pykvpool_sim.checkers.witness import Witness
from pykvpool_sim.fabric import Landing, SimMemory
from pykvpool_sim.life import Life, State


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    """A view that was not left yet."""

    life: Life
    key: bytes
    view: View
    memory: SimMemory
    expected: bytes


class ViewChecker:
    """A `Watcher` of the data network. `witness` gives the present life of the master, `memory_of` finds the memory
    that a view shows."""

    def __init__(
        self,
        witness: Callable[[], Witness | None],
        memory_of: Callable[[memoryview], SimMemory | None],
        verdicts: Verdicts,
    ) -> None:
        self._witness = witness
        self._memory_of = memory_of
        self._verdicts = verdicts
        #: In the order in which they were opened; values mean nothing.
        self._open: dict[_Open, None] = {}

    @contextlib.contextmanager
    def watched(self, life: Life, key: bytes, view: View, expected: bytes) -> Iterator[None]:
        """Within the block the view is looked at whenever that might show something. A private copy is not."""
        memory = self._memory_of(view.data) if view.zero_copy else None
        if memory is None:
            yield
            return
        opened = _Open(life, key, view, memory, expected)
        self._open[opened] = None
        self._look(opened)
        try:
            yield
        finally:
            del self._open[opened]

    def look(self, view: View) -> None:
        """Its holder does, now."""
        for opened in [opened for opened in self._open if opened.view is view]:
            self._look(opened)

    def lapsed(self, view: View) -> bool:
        """No lease is in force over what the view shows: whoever leaves it now has to be told."""
        return any(opened.view is view and not self._is_guarded(opened) for opened in self._open)

    def left_silently(self, key: bytes) -> None:
        """A view whose lease had lapsed was left as if nothing were wrong."""
        self._verdicts.add("P1", f"a view of {key!r} was left without a word, and no lease was in force", key=key)

    def landed(self, landing: Landing) -> None:
        if landing.put_id is not None:
            for opened in [opened for opened in self._open if opened.memory is landing.memory]:
                self._look(opened)

    def _look(self, opened: _Open) -> None:
        if opened.life.state is State.DEAD:
            return
        try:
            data = opened.view.data
        except StaleView:
            return
        key = opened.key
        if data != opened.expected:
            self._verdicts.add("P1", f"a view of {opened.life.name} shows other bytes than those of {key!r}", key=key)
        elif not self._is_guarded(opened):
            self._verdicts.add("P1", f"a view of {opened.life.name} shows {key!r}, and no lease is in force", key=key)

    def _is_guarded(self, opened: _Open) -> bool:
        """Memory that the master gave up, or never heard of, is given to nobody."""
        witness = self._witness()
        segment = witness.ledger.by_generation.get(opened.memory.generation) if witness is not None else None
        if witness is None or segment is None or not witness.ledger.is_alive(segment.fact.segment):
            return True
        here = (taken.put_id for taken in segment.taken.values() if taken.holding is not Holding.OPEN)
        return any(witness.ledger.puts[put_id].fact.hash == opened.key and witness.is_leased(put_id) for put_id in here)
