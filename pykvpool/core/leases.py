"""Leases: while one lasts, the bytes of the objects under it stay where they are.

One id stands for a whole batch; each object counts the leases over it in a column of the catalog. A lapsed lease is
never revived, a lease is not renewed past its lifetime, and what one session may hold is capped, so that no reader can
fill the pool for ever. Leases are soft state: they bound what the master does, they are not facts.

Times are milliseconds of the core's clock, passed in.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from pykvpool.core.catalog import Catalog
from pykvpool.core.config import CoreConfig
from pykvpool.core.deadlines import Deadlines
from pykvpool.errors import LeaseExpired, LimitExceeded, NotOwner, Overloaded
from pykvpool.model.ids import LeaseId, SessionId

#: Units of a slice (see `jobs`) that ending one lease costs, besides its rows.
LEASE_UNITS = 8


@dataclass(slots=True)
class Lease:
    """One lease over a batch of rows."""

    id: LeaseId
    session: SessionId
    #: Catalog rows; they stay what they are (resident or lingering) while counted.
    rows: array[int]
    #: Sum of their sizes; an object under two leases counts twice.
    size_bytes: int
    born_at: int
    expires_at: int


@dataclass(slots=True)
class Holding:
    """What one session holds."""

    leases: dict[LeaseId, None]
    size_bytes: int = 0


class Leases:
    """All leases."""

    def __init__(self, config: CoreConfig, catalog: Catalog) -> None:
        self._config = config
        self._catalog = catalog
        self.by_id: dict[LeaseId, Lease] = {}
        #: Sessions that hold any.
        self.by_session: dict[SessionId, Holding] = {}
        self.deadlines = Deadlines(self._deadline_of, lambda: len(self.by_id))
        #: Leases that are over, with the rows that they cover still.
        self.ending: dict[LeaseId, Lease] = {}
        #: Rows under any lease, and their bytes, each counted once.
        self.covered = 0
        self.covered_bytes = 0
        self._last_id = 0

    def duration_ms(self, asked_ms: int) -> int:
        """What a grant gives: the default for 0, never more than the longest allowed."""
        return min(asked_ms or self._config.lease_ms, self._config.max_lease_ms)

    def open(self, session: SessionId, now: int) -> Lease:
        """A lease over nothing yet; `cover` rows, then `start` it. Raises `Overloaded` for one too many."""
        holding = self.by_session.get(session) or Holding({})
        if len(holding.leases) >= self._config.max_leases_per_session:
            raise Overloaded(
                f"this session holds {len(holding.leases)} leases, the most allowed (max_leases_per_session): "
                "release some first",
                leases=len(holding.leases),
            )
        self._last_id += 1
        lease = Lease(LeaseId(self._last_id), session, array("I"), 0, now, now)
        self.by_session[session] = holding
        holding.leases[lease.id] = None
        self.by_id[lease.id] = lease
        return lease

    def cover(self, lease: Lease, rows: Sequence[int], capacity_bytes: int) -> None:
        """Also these rows. Raises `Overloaded` where the session would hold too much; then none of them is covered.

        `capacity_bytes` is the pool's; a part of it is what one session may lease.
        """
        if not rows:
            return
        holding = self.by_session[lease.session]
        size_bytes = self._total_bytes(rows)
        ratio = self._config.max_leased_ratio_per_session
        limit_bytes = int(capacity_bytes * ratio)
        # An object under two leases counts twice. Without a bound that must not refuse who reads a few objects often.
        if ratio < 1 and holding.size_bytes + size_bytes > limit_bytes:
            raise Overloaded(
                f"{size_bytes} bytes more under leases would make {holding.size_bytes + size_bytes} for this session: "
                f"max_leased_ratio_per_session allows {limit_bytes}; release some first",
                leased_bytes=holding.size_bytes,
                asked_bytes=size_bytes,
                limit_bytes=limit_bytes,
            )
        counts, sizes = self._catalog.leases, self._catalog.size
        fresh = fresh_bytes = 0
        for row in rows:
            count = counts[row]
            counts[row] = count + 1
            if not count:
                fresh += 1
                fresh_bytes += sizes[row]
        self.covered += fresh
        self.covered_bytes += fresh_bytes
        lease.rows.extend(rows)
        lease.size_bytes += size_bytes
        holding.size_bytes += size_bytes

    def start(self, lease: Lease, lease_ms: int, now: int) -> None:
        """It is whole: its time begins."""
        lease.expires_at = now + lease_ms
        self.deadlines.add(lease.id, lease.expires_at)

    def renew(self, session: SessionId, lease_id: LeaseId, lease_ms: int, now: int) -> None:
        """Extend to `lease_ms` from now, whole or not at all: the reader counts on all of it."""
        asked_ms = lease_ms or self._config.lease_ms
        if asked_ms > self._config.max_lease_ms:
            raise LimitExceeded(
                f"a lease of {asked_ms} ms: at most {self._config.max_lease_ms} are granted (max_lease_ms)",
                asked_ms=asked_ms,
                limit_ms=self._config.max_lease_ms,
            )
        lease = self.by_id.get(lease_id)
        if lease is None or lease.expires_at <= now:
            raise LeaseExpired(f"lease {lease_id} has lapsed; what was read under it since is to be discarded")
        if lease.session != session:
            raise NotOwner(f"lease {lease_id} belongs to another session")
        if now + asked_ms > lease.born_at + self._config.max_lease_lifetime_ms:
            raise LeaseExpired(
                f"lease {lease_id} would outlive {self._config.max_lease_lifetime_ms} ms (max_lease_lifetime_ms): "
                "ask for the objects again",
                age_ms=now - lease.born_at,
            )
        lease.expires_at = max(lease.expires_at, now + asked_ms)

    def end(self, lease_id: LeaseId) -> Lease | None:
        """The lease is over (idempotent: None). Its rows stay covered until `uncover` has gone through them."""
        lease = self.by_id.pop(lease_id, None)
        if lease is None:
            return None
        holding = self.by_session[lease.session]
        del holding.leases[lease_id]
        holding.size_bytes -= lease.size_bytes
        if not holding.leases:
            del self.by_session[lease.session]
        self.ending[lease_id] = lease
        return lease

    def uncover(self, lease: Lease, limit: int) -> list[int]:
        """Let go of up to `limit` rows of a lease that is over. Returns those that no lease covers any more."""
        counts, sizes = self._catalog.leases, self._catalog.size
        uncovered = []
        for row in lease.rows[-limit:]:
            count = counts[row] - 1
            counts[row] = count
            if not count:
                uncovered.append(row)
                self.covered_bytes -= sizes[row]
        self.covered -= len(uncovered)
        del lease.rows[-limit:]
        if not lease.rows:
            del self.ending[lease.id]
        return uncovered

    def of_session(self, session: SessionId) -> list[LeaseId]:
        holding = self.by_session.get(session)
        return list(holding.leases) if holding else []

    def rows_of_session(self, session: SessionId, limit: int) -> set[int] | None:
        """Rows under the leases of one session; None where it would take a walk over more than `limit` to know."""
        leases = [self.by_id[lease_id] for lease_id in self.of_session(session)]
        if sum(len(lease.rows) for lease in leases) > limit:
            return None
        return {row for lease in leases for row in lease.rows}

    def _total_bytes(self, rows: Sequence[int]) -> int:
        if len(rows) == 1:
            return self._catalog.size[rows[0]]
        # itemgetter picks a whole batch in one C call: a third of the time of a comprehension.
        sizes: tuple[int, ...] = itemgetter(*rows)(self._catalog.size)
        return sum(sizes)

    def _deadline_of(self, ident: int) -> int | None:
        lease = self.by_id.get(LeaseId(ident))
        return None if lease is None else lease.expires_at
