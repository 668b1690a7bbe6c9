"""Who may still be reading: leases as they follow from the master's answers, and what that forbids (P2, P6).

While a lease is in force, the objects under it keep their bytes: their extents do not come free but by the loss of
their segment. The book ends a lease as soon as the master may (its time, its release, its holder's goodbye), so the
master is never blamed for ending one too early by a hair. A holder that fell silent, or was superseded, may still be
reading: the end of its session alone ends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pykvpool.model.ids import LeaseId, PutId, SessionId
from pykvpool_sim.checkers.ledger import Ledger


@dataclass(slots=True)
class BookedLease:
    session: SessionId
    puts: frozenset[PutId]
    #: On the master's clock.
    expires_at: int


class LeaseBook:
    """All leases of one life of the master."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._leases: dict[LeaseId, BookedLease] = {}
        #: Lapsed, or released: never in force again.
        self._over: set[LeaseId] = set()

    def grant(self, lease: LeaseId, session: SessionId, puts: frozenset[PutId], expires_at: int) -> None:
        self._leases[lease] = BookedLease(session, puts, expires_at)

    def renew(self, lease: LeaseId, expires_at: int) -> None:
        booked = self._leases.get(lease)
        if booked is not None:
            booked.expires_at = max(booked.expires_at, expires_at)

    def in_force(self, lease: LeaseId, now: int) -> bool:
        booked = self._leases.get(lease)
        return booked is not None and now < booked.expires_at and not self._has_left(booked.session)

    def _has_left(self, session: SessionId) -> bool:
        return self._ledger.sessions[session].ended == "goodbye"

    def known(self) -> list[LeaseId]:
        """Those that may be in force, oldest first."""
        return list(self._leases)

    def release(self, lease: LeaseId, session: SessionId) -> None:
        booked = self._leases.get(lease)
        if booked is not None and booked.session == session:
            del self._leases[lease]
            self._over.add(lease)

    def is_over(self, lease: LeaseId, now: int) -> bool:
        """It was in force once, and can never be again."""
        return lease in self._over or (lease in self._leases and not self.in_force(lease, now))

    def covering(self, put_id: PutId, now: int) -> LeaseId | None:
        """A lease in force over this object."""
        for lease, booked in self._leases.items():
            if put_id in booked.puts and self.in_force(lease, now):
                return lease
        return None

    def forget_ended(self, now: int) -> None:
        for lease in [lease for lease in self._leases if not self.in_force(lease, now)]:
            del self._leases[lease]
            self._over.add(lease)
