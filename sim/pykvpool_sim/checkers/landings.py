"""P2 and P5, where they become true or not: at the very piece of bytes that lands.

A write may land in an extent only while that extent is its own put's: open, or in quarantine. Not when it is free (it
could be given out), not when it is an object, not when it is another's. And nothing of an earlier mount touches a later
one, for writing or reading; nor the earlier one itself once its node has mounted again. Mounts that the master gave up,
and their nodes have not replaced yet, are nobody's: what lands there harms nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pykvpool_sim.checkers.ledger import Holding, Ledger
from pykvpool_sim.checkers.verdicts import Verdicts
from pykvpool_sim.fabric import Landing

#: Writes kept for stories.
MAX_KEPT = 20_000


class LandingChecker:
    """A `Watcher` of the data network. `ledger` gives the present one, None while there is no master."""

    def __init__(self, ledger: Callable[[], Ledger | None], verdicts: Verdicts) -> None:
        self._ledger = ledger
        self._verdicts = verdicts
        #: (world time, landing), the latest writes.
        self.kept: deque[tuple[int, Landing]] = deque(maxlen=MAX_KEPT)

    def landed(self, landing: Landing) -> None:
        if landing.memory.generation != landing.generation:
            self._verdicts.add(
                "P5",
                f"{_words(landing)} touched generation {landing.memory.generation:#x} through a descriptor of "
                f"{landing.generation:#x}",
                put_id=landing.put_id,
            )
        ledger = self._ledger()
        newest = ledger.newest_mount(landing.generation) if ledger is not None else None
        if newest not in (None, landing.generation):
            self._verdicts.add(
                "P5",
                f"{_words(landing)} touched {landing.generation:#x}, and its node has mounted {newest:#x} since",
                put_id=landing.put_id,
            )
        if landing.put_id is not None:
            self.kept.append((self._verdicts.now_ns(), landing))
            self._check_owner(landing)

    def _check_owner(self, landing: Landing) -> None:
        ledger = self._ledger()
        segment = ledger.by_generation.get(landing.generation) if ledger is not None else None
        if ledger is None or segment is None or not ledger.is_alive(segment.fact.segment) or landing.put_id is None:
            return
        taken = segment.at(landing.offset)
        if taken is None:
            trouble = "in free space"
        elif taken.put_id != landing.put_id:
            trouble = f"in an extent that is {taken.holding.value} for put {taken.put_id}"
        elif taken.holding not in (Holding.OPEN, Holding.QUARANTINED):
            trouble = f"in its own extent, which is {taken.holding.value} already"
        else:
            return
        entry = ledger.puts.get(landing.put_id)
        self._verdicts.add(
            "P2",
            f"{_words(landing)} landed {trouble}",
            key=entry.fact.hash if entry is not None else None,
            put_id=landing.put_id,
        )


def _words(landing: Landing) -> str:
    late = "late " if landing.late else ""
    what = "read" if landing.put_id is None else f"write of put {landing.put_id}"
    return f"a {late}{what} by {landing.peer.name} at [{landing.offset}, {landing.offset + landing.length})"
