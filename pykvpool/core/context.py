"""What every decision shares: the state, the clock of this step, the effects it collects, and the parts by concept.

Handlers get a `Context` and nothing else. Decisions reach durable state through `emit` alone; helpers here are those
that several parts need and that must not be written twice (removing an object, ending a lease, closing a put).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pykvpool.core.catalog import LINGERING, RESIDENT
from pykvpool.core.config import CoreConfig
from pykvpool.core.counters import new_counters
from pykvpool.core.deadlines import Deadlines
from pykvpool.core.effects import Effects
from pykvpool.core.eviction.evictor import PARKED
from pykvpool.core.full import Occupancy, measure
from pykvpool.core.jobs import Job, Jobs, Slice, Work
from pykvpool.core.leases import Lease, Leases
from pykvpool.core.puts import OpenPut
from pykvpool.core.state import DurableState
from pykvpool.core.watching import Watching
from pykvpool.errors import invariant
from pykvpool.model.facts import ExtentsFreed, Fact, ObjectCommitted, ObjectRemoved, PutClosed
from pykvpool.model.ids import LeaseId, PutId, RequestId, ScopeId, SegmentId, SessionId
from pykvpool.model.instructions import Instruction
from pykvpool.model.objects import Extent
from pykvpool.model.replies import Reply

if TYPE_CHECKING:
    from pykvpool.core.fences import Fences
    from pykvpool.core.hash_requests import HashRequests
    from pykvpool.core.placement import Placement
    from pykvpool.core.waiting import Waiting

#: A moment (see `Policy`) is the time in ms, shifted: room to tell this many steps of one millisecond apart.
MOMENT_BITS = 10
#: Rows that a lease lets go of between two looks at the slice; and the units (see `jobs`) that a row costs when that
#: frees its extents, or makes it evictable.
UNCOVER_ROWS = 32
FREE_UNITS = 10
RECHECK_UNITS = 2


class Context:
    """The master's parts, wired together by `MasterCore`."""

    waiting: Waiting
    fences: Fences
    placement: Placement
    hash_requests: HashRequests

    def __init__(self, config: CoreConfig, epoch: int) -> None:
        self.config = config
        self.epoch = epoch
        #: Milliseconds; never falls, whatever the shell's clock does.
        self.now = 0
        self.state = DurableState(config)
        self.leases = Leases(config, self.state.catalog)
        self.jobs = Jobs()
        self.watching = Watching()
        self.counters = new_counters()
        #: Of the step under way.
        self.effects = Effects()
        self._occupancy: Occupancy | None = None
        self._occupancy_of = -1
        #: When each open put is closed unless it ended; soft, so puts of a replayed past have none.
        self.put_deadline: dict[PutId, int] = {}
        self.put_deadlines = Deadlines(lambda put_id: self.put_deadline.get(PutId(put_id)), self._open_count)
        self.session_deadlines = Deadlines(self._session_deadline, lambda: len(self.state.sessions.by_id))

    # -- the step ----------------------------------------------------------------------------------------------------

    def begin(self, now: int) -> None:
        self.now = max(self.now, now)
        self.state.moment = max(self.state.moment + 1, self.now << MOMENT_BITS)
        self.effects = Effects()

    def emit(self, fact: Fact) -> None:
        """Decide: record the fact and make it so."""
        self.effects.facts.append(fact)
        self.state.evolve(fact)

    def instruct(self, session: SessionId, instruction: Instruction) -> None:
        """For a session that is connected now; whoever instructs repeats what still stands when it comes back."""
        self.effects.instructions.append((session, instruction))

    def answer(self, session_id: SessionId, request_id: RequestId, reply: Reply) -> None:
        """The one reply to a request; kept for repeats. Nobody is left to answer once the session is over."""
        session = self.state.sessions.by_id.get(session_id)
        if session is None:
            return
        invariant(session.log.replies.get(request_id, reply) is None, "a request is answered once")
        session.log.replies[request_id] = reply
        self.effects.replies.append((session_id, request_id, reply))

    def occupancy(self) -> Occupancy:
        """What cannot go, measured at most once per step."""
        if self._occupancy_of != self.state.moment or self._occupancy is None:
            self._occupancy_of, self._occupancy = self.state.moment, measure(self)
        return self._occupancy

    def new_slice(self) -> Slice:
        return Slice(self.config.slice_objects)

    def run_later(self, work: Work) -> None:
        """Long work of the master's own."""
        self.jobs.add(Job(work, None, None))

    def is_live(self, session: SessionId) -> bool:
        return session in self.state.sessions.by_id

    # -- what several parts do ---------------------------------------------------------------------------------------

    def touch(self, rows: Collection[int]) -> None:
        self.state.evictor.touch(rows, self.state.moment)

    def idle_ms(self, row: int) -> int:
        return max(0, self.now - (self.state.evictor.last_used(row) >> MOMENT_BITS))

    def remove_object(self, row: int, reason: str) -> None:
        """The key of a resident row goes now; its bytes too, or when its leases end."""
        catalog = self.state.catalog
        lingering = catalog.leases[row] > 0
        self.counters["objects_removed_total"] += 1
        if reason == "evicted":
            self.counters["objects_evicted_total"] += 1
            self.counters["bytes_evicted_total"] += catalog.size[row]
        elif reason == "replicas lost":
            self.counters["objects_lost_total"] += 1
        scope, hash_ = ScopeId(catalog.scope[row]), catalog.hash_of(row)
        self.watching.removed(scope, hash_)
        self.emit(ObjectRemoved(scope, hash_, PutId(catalog.put_id[row]), reason, lingering))

    def end_lease(self, lease_id: LeaseId) -> int:
        """Idempotent; frees what lingered for it. Returns the units of a slice spent; a large one goes on by itself."""
        lease = self.leases.end(lease_id)
        if lease is None:
            return 0
        units = min(len(lease.rows) + 1, self.config.slice_objects)
        work = self._uncover(lease)
        try:
            next(work)
        except StopIteration:
            return units
        self.run_later(work)
        return units

    def _uncover(self, lease: Lease) -> Work:
        """Of the master's own: whoever ended the lease may be gone before this is done."""
        catalog, evictor, work = self.state.catalog, self.state.evictor, self.new_slice()
        state, where = catalog.state, evictor.where
        while lease.id in self.leases.ending:
            units = UNCOVER_ROWS // 2
            for row in self.leases.uncover(lease, UNCOVER_ROWS):
                if state[row] == LINGERING:
                    self.emit(ExtentsFreed(PutId(catalog.put_id[row])))
                    units += FREE_UNITS
                elif where[row] == PARKED and state[row] == RESIDENT:
                    evictor.recheck(row)
                    units += RECHECK_UNITS
            if work.spend(units):
                yield
        return None

    def open_put(self, put_id: PutId) -> None:
        """Start the time of a put that was just opened."""
        self.put_deadline[put_id] = self.now + self.config.put_ttl_ms
        self.put_deadlines.add(put_id, self.put_deadline[put_id])
        self.counters["puts_granted_total"] += 1

    def commit_put(
        self, put: OpenPut, checksum: int | None, landed: tuple[Extent, ...], quarantined: tuple[Extent, ...]
    ) -> None:
        """The put is an object now; whoever waited for its writer learns it."""
        self.put_deadline.pop(put.put_id, None)
        self.counters["puts_committed_total"] += 1
        self.counters["bytes_committed_total"] += put.size_bytes
        self.emit(ObjectCommitted(put.put_id, checksum, landed, quarantined))
        self._after_quarantine(put, quarantined)
        self.waiting.committed(put)

    def close_put(self, put: OpenPut, quarantined: tuple[Extent, ...], reason: str) -> None:
        """The put ends without an object; the first that waited for its writer takes over."""
        self.put_deadline.pop(put.put_id, None)
        self.counters["puts_closed_total"] += 1
        self.emit(PutClosed(put.put_id, quarantined, reason))
        self._after_quarantine(put, quarantined)
        self.waiting.untold.discard(put.put_id)
        self.waiting.holder_gone(put.key)

    def live_extents(self, put: OpenPut) -> tuple[Extent, ...]:
        """Those of its extents whose segment is there to stay."""
        return tuple(extent for extent in put.extents if self.state.is_alive(extent.segment))

    def _after_quarantine(self, put: OpenPut, quarantined: tuple[Extent, ...]) -> None:
        self.counters["extents_quarantined_total"] += len(quarantined)
        for extent in quarantined:
            self.fences.need(put.session, extent.segment)

    def _open_count(self) -> int:
        return len(self.put_deadline)

    def _session_deadline(self, ident: int) -> int | None:
        session = self.state.sessions.by_id.get(SessionId(ident))
        if session is None:
            return None
        return session.deadline(self.config.session_ttl_ms, self.config.reconnect_grace_ms)

    def arm_session(self, session_id: SessionId) -> None:
        """Its deadline may have come nearer (new, or disconnected)."""
        deadline = self._session_deadline(session_id)
        if deadline is not None:
            self.session_deadlines.add(session_id, deadline)

    def segment_session(self, segment: SegmentId) -> SessionId | None:
        """The session of the segment's node if it is connected and the segment serves."""
        record = self.state.segments.by_id.get(segment)
        if record is None or record.going:
            return None
        session = self.state.sessions.by_id.get(record.session)
        return session.id if session is not None and session.connected else None
