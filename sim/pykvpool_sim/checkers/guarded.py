"""P1, for readers whom only a lease protects: what a call returned was read while a lease was in force.

Right bytes are no proof: an extent whose lease has lapsed keeps its bytes until somebody else needs it, which may be
never in a small run. So it is not waited for. Of the reads of an object that a successful call made, at least one must
have been under a lease from its first piece to its last, on the master's clock.

Mounts that the master gave up are not given out again: their bytes stay what they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pykvpool_sim.checkers.verdicts import Verdicts
from pykvpool_sim.checkers.witness import Witness
from pykvpool_sim.fabric import Landing

#: Reads remembered: far more than are made during one call.
_MAX_KEPT = 4_096


@dataclass(slots=True)
class _Read:
    """One operation."""

    operation: int
    host: str
    begun_ns: int
    #: Whose bytes it took; None: not an object's.
    hash: bytes | None
    guarded: bool


class GuardChecker:
    """A `Watcher` of the data network, asked by the workload. `witness` gives the present life of the master."""

    def __init__(self, witness: Callable[[], Witness | None], verdicts: Verdicts) -> None:
        self._witness = witness
        self._verdicts = verdicts
        self._reads: deque[_Read] = deque(maxlen=_MAX_KEPT)

    def landed(self, landing: Landing) -> None:
        if landing.put_id is not None:
            return
        hash_, guarded = self._look(landing)
        for read in reversed(self._reads):
            if read.operation == landing.operation:
                read.guarded &= guarded
                return
        self._reads.append(_Read(landing.operation, landing.source, self._verdicts.now_ns(), hash_, guarded))

    def _look(self, landing: Landing) -> tuple[bytes | None, bool]:
        witness = self._witness()
        segment = witness.ledger.by_generation.get(landing.generation) if witness is not None else None
        if witness is None or segment is None:
            return None, True
        taken = segment.at(landing.offset)
        hash_ = witness.ledger.puts[taken.put_id].fact.hash if taken is not None else None
        if not witness.ledger.is_alive(segment.fact.segment):
            return hash_, True
        return hash_, taken is not None and witness.is_leased(taken.put_id)

    def returned(self, host: str, invoked_ns: int, key: bytes) -> None:
        """A call that began then gave `host` the bytes of `key`."""
        reads = [read for read in self._reads if read.host == host and read.begun_ns >= invoked_ns and read.hash == key]
        if reads and not any(read.guarded for read in reads):
            self._verdicts.add("P1", f"{host} was given {key!r}, and no lease was in force when it was read", key=key)
