"""The lease that a lookup builds up while it goes through its keys, in slices.

Rows are under it from the moment they are added, so that what was found stays; its time begins when it is whole. If the
session would hold too much it ends, and the whole lookup is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from pykvpool.core.context import Context
from pykvpool.core.leases import Lease
from pykvpool.errors import PoolError
from pykvpool.model.ids import LeaseId, SessionId


class Hold:
    """One lease, or none where nothing is found (or nothing is to be held)."""

    def __init__(self, context: Context, session: SessionId, asked_ms: int, wanted: bool = True) -> None:
        self._context = context
        self._session = session
        self._wanted = wanted
        self._lease: Lease | None = None
        #: What the lease is granted for, in milliseconds.
        self.lease_ms = context.leases.duration_ms(asked_ms)

    def add(self, rows: Sequence[int]) -> None:
        """These were found: they are used, and held if that is wanted. Raises `Overloaded`."""
        context = self._context
        context.touch(rows)
        if not self._wanted or not rows:
            return
        if self._lease is None:
            self._lease = context.leases.open(self._session, context.now)
        try:
            context.leases.cover(self._lease, rows, context.state.segments.live_capacity_bytes())
        except PoolError:
            context.end_lease(self._lease.id)
            raise

    def start(self) -> LeaseId | None:
        """It is whole."""
        if self._lease is None:
            return None
        self._context.leases.start(self._lease, self.lease_ms, self._context.now)
        self._context.counters["leases_granted_total"] += 1
        return self._lease.id
