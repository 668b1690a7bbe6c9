"""The durable state, and `evolve`, the only thing that changes it.

Every fact has one method here. The same methods run when the master decides and when its facts are replayed, so they
decide nothing: a fact says exactly which extents, and `reserve` takes exactly those. Facts that cannot be true break an
invariant at once instead of bending the books.

The evictor is told of rows as they come and go, so that a follower is as warm as the order of the facts makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pykvpool.core.catalog import LINGERING, NONE, Catalog
from pykvpool.core.config import CoreConfig
from pykvpool.core.eviction import POLICIES
from pykvpool.core.eviction.evictor import Evictor
from pykvpool.core.puts import OpenPut, Puts
from pykvpool.core.segments import Segments
from pykvpool.core.sessions import Sessions
from pykvpool.errors import ConfigError, invariant
from pykvpool.model import facts
from pykvpool.model.ids import PutId, ScopeId, SegmentId, SessionId
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Extent, Pin


class DurableState:
    """What facts build: scopes, sessions, segments, objects, unfinished writes and quarantine."""

    def __init__(self, config: CoreConfig) -> None:
        policy = POLICIES.get(config.policy)
        if policy is None:
            raise ConfigError(f"policy {config.policy!r} is unknown: one of {', '.join(sorted(POLICIES))}")
        #: Moment given to rows that come; the master sets it before each step (see `Policy`).
        self.moment = 0
        self.scopes: list[Scope] = []
        self.scope_ids: dict[Scope, ScopeId] = {}
        self.sessions = Sessions()
        self.segments = Segments(config.alignment_bytes)
        self.puts = Puts()
        self.catalog = Catalog()
        self.evictor = Evictor(self.catalog, policy)
        #: Rows of resident objects with a hard pin, in order.
        self.hard_pinned: dict[int, None] = {}
        self.hard_pinned_bytes = 0
        #: Objects whose key is gone while readers hold leases, and their bytes in all replicas.
        self.lingering = 0
        self.lingering_bytes = 0
        #: The same with one copy of each.
        self.lingering_object_bytes = 0
        self._methods: dict[type, Callable[[Any], None]] = {
            facts.ScopeInterned: self._scope_interned,
            facts.SessionOpened: self._session_opened,
            facts.SessionEnded: self._session_ended,
            facts.SegmentMounted: self._segment_mounted,
            facts.SegmentGoing: self._segment_going,
            facts.SegmentRemoved: self._segment_removed,
            facts.PutOpened: self._put_opened,
            facts.ObjectCommitted: self._object_committed,
            facts.PutClosed: self._put_closed,
            facts.QuarantineEnded: self._quarantine_ended,
            facts.ObjectRemoved: self._object_removed,
            facts.ExtentsFreed: self._extents_freed,
            facts.ReplicaLost: self._replica_lost,
            facts.PinChanged: self._pin_changed,
            facts.ChecksumSet: self._checksum_set,
        }

    def evolve(self, fact: facts.Fact) -> None:
        """Make the fact so."""
        self._methods[type(fact)](fact)

    def is_alive(self, segment: SegmentId) -> bool:
        """Mounted and not going: what lies there may be named to a reader."""
        record = self.segments.by_id.get(segment)
        return record is not None and not record.going

    @property
    def hides(self) -> bool:
        """Are some resident rows not to be found, so that each one has to be asked about (`is_visible`)?"""
        return bool(self.segments.going) or self.evictor.sealed

    def is_visible(self, row: int) -> bool:
        """May a resident row be found? Not if all its copies are going, nor if it is about to be evicted."""
        return not self.evictor.is_hidden(row) and self.has_copy(row)

    def has_copy(self, row: int) -> bool:
        """Has a resident row a copy in a segment that is not going?"""
        going, table = self.segments.going, self.catalog.replicas
        return any(table.segment[replica] not in going for replica in table.of_object(self.catalog.replica[row]))

    # -- scopes, sessions, segments ----------------------------------------------------------------------------------

    def _scope_interned(self, fact: facts.ScopeInterned) -> None:
        invariant(fact.scope_id == len(self.scopes), "scopes are numbered in order")
        self.scopes.append(fact.scope)
        self.scope_ids[fact.scope] = fact.scope_id
        self.catalog.add_scope()

    def _session_opened(self, fact: facts.SessionOpened) -> None:
        self.sessions.open(fact)

    def _session_ended(self, fact: facts.SessionEnded) -> None:
        self.sessions.end(fact.session, fact.reason)
        self._forget_session(fact.session)

    def _forget_session(self, session: SessionId) -> None:
        """An ended session without open puts, quarantine and segments needs no name any more."""
        if session not in self.sessions.ended:
            return
        if session in self.puts.by_session or self.puts.is_quarantined(session):
            return
        self.sessions.forget(session)

    def _segment_mounted(self, fact: facts.SegmentMounted) -> None:
        self.segments.mount(fact)
        self.evictor.room_version += 1

    def _segment_going(self, fact: facts.SegmentGoing) -> None:
        self.segments.set_going(fact.segment, fact.reason)

    def _segment_removed(self, fact: facts.SegmentRemoved) -> None:
        invariant(fact.segment not in self.catalog.replicas.heads, "a removed segment holds no replica")
        for place in self.puts.places_in(fact.segment):
            for put_id in list(self.puts.by_place[place]):
                self.puts.end_quarantine(put_id, fact.segment)
            self._forget_session(place[0])
        self.segments.remove(fact.segment)

    # -- unfinished writes -------------------------------------------------------------------------------------------

    def _put_opened(self, fact: facts.PutOpened) -> None:
        depth = self._depth_below(fact.scope, fact.parent)
        self.puts.open(
            OpenPut(
                fact.put_id, fact.session, fact.scope, fact.hash, fact.size_bytes, fact.parent, depth, fact.pin,
                fact.min_replicas, fact.extents,
            )
        )  # fmt: skip
        for extent in fact.extents:
            self.segments.by_id[extent.segment].space.reserve(extent.offset, extent.length)

    def _depth_below(self, scope: ScopeId, parent: bytes | None) -> int:
        if parent is None:
            return 0
        row = self.catalog.find(scope, parent)
        if row == NONE:
            row = self.catalog.ghosts[scope].get(parent, NONE)
        if row != NONE:
            return self.catalog.depth[row] + 1
        put = self.puts.by_key.get((scope, parent))
        return put.depth + 1 if put else 1

    def _object_committed(self, fact: facts.ObjectCommitted) -> None:
        put = self._close(fact.put_id, fact.quarantined, keep=fact.landed)
        row = self.catalog.add(
            put.scope, put.hash, put.put_id, put.session, put.size_bytes, fact.checksum, put.parent, put.depth, put.pin,
            fact.landed,
        )  # fmt: skip
        self.evictor.added(row, self.moment)
        self._set_hard_pinned(row, put.pin == Pin.HARD)

    def _put_closed(self, fact: facts.PutClosed) -> None:
        put = self._close(fact.put_id, fact.quarantined)
        self._forget_session(put.session)

    def _close(self, put_id: PutId, quarantined: tuple[Extent, ...], keep: tuple[Extent, ...] = ()) -> OpenPut:
        put = self.puts.close(put_id)
        for extent in put.extents:
            if extent in keep:
                continue
            if extent in quarantined:
                self.puts.quarantine(put, extent)
                segment = self.segments.by_id[extent.segment]
                segment.quarantined_bytes += segment.space.rounded(extent.length)
            else:
                self._free(extent)
        return put

    def _quarantine_ended(self, fact: facts.QuarantineEnded) -> None:
        session = self.puts.quarantined[fact.put_id].session
        extent = self.puts.end_quarantine(fact.put_id, fact.segment)
        segment = self.segments.by_id[extent.segment]
        segment.quarantined_bytes -= segment.space.rounded(extent.length)
        self._free(extent)
        self._forget_session(session)

    def _free(self, extent: Extent) -> None:
        """Extents in a segment that was removed meanwhile went with it."""
        segment = self.segments.by_id.get(extent.segment)
        if segment is not None:
            segment.space.free(extent.offset, extent.length)
            self.evictor.room_version += 1

    # -- objects -----------------------------------------------------------------------------------------------------

    def _row(self, scope: ScopeId, hash_: bytes, put_id: PutId) -> int:
        row = self.catalog.by_put.get(put_id)
        invariant(row != NONE, "a fact names an object that is there")
        invariant(
            self.catalog.scope[row] == scope and self.catalog.hashes[row] == hash_, "a fact's key and put_id agree"
        )
        return row

    def _object_removed(self, fact: facts.ObjectRemoved) -> None:
        catalog = self.catalog
        row = self._row(fact.scope, fact.hash, fact.put_id)
        self.evictor.removed(row, evicted=fact.reason == "evicted")
        self._set_hard_pinned(row, False)
        if fact.lingering:
            self.lingering += 1
            self.lingering_object_bytes += catalog.size[row]
            self.lingering_bytes += self.replica_bytes(row)
        else:
            self._free_replicas(row)
        parent = catalog.unlink(row, fact.lingering)
        if parent != NONE:
            self.evictor.recheck(parent)
        ghost = catalog.ghosts[fact.scope].get(fact.hash, NONE)
        if ghost != NONE:
            self.evictor.orphaned(ghost, row)

    def _extents_freed(self, fact: facts.ExtentsFreed) -> None:
        row = self.catalog.by_put.get(fact.put_id)
        invariant(row != NONE and self.catalog.state[row] == LINGERING, "only a lingering object's extents are freed")
        self.lingering -= 1
        self.lingering_object_bytes -= self.catalog.size[row]
        self.lingering_bytes -= self.replica_bytes(row)
        self._free_replicas(row)
        self.catalog.bury(row)

    def _replica_lost(self, fact: facts.ReplicaLost) -> None:
        catalog = self.catalog
        row = self._row(fact.scope, fact.hash, fact.put_id)
        for replica in list(catalog.replicas.of_object(catalog.replica[row])):
            if catalog.replicas.segment[replica] == fact.segment:
                self._free_replica(row, replica)
                if catalog.state[row] == LINGERING:
                    self.lingering_bytes -= catalog.size[row]

    def replica_bytes(self, row: int) -> int:
        """Object bytes in all its replicas."""
        copies = sum(1 for _ in self.catalog.replicas.of_object(self.catalog.replica[row]))
        return copies * self.catalog.size[row]

    def _free_replicas(self, row: int) -> None:
        for replica in list(self.catalog.replicas.of_object(self.catalog.replica[row])):
            self._free_replica(row, replica)

    def _free_replica(self, row: int, replica: int) -> None:
        table = self.catalog.replicas
        extent = Extent(SegmentId(table.segment[replica]), table.offset[replica], self.catalog.size[row])
        self.catalog.remove_replica(replica)
        self._free(extent)

    def _pin_changed(self, fact: facts.PinChanged) -> None:
        row = self.catalog.find(fact.scope, fact.hash)
        invariant(row != NONE, "a fact names an object that is there")
        self.catalog.pin[row] = fact.pin
        self._set_hard_pinned(row, fact.pin == Pin.HARD)
        self.evictor.pin_changed(row)

    def _set_hard_pinned(self, row: int, pinned: bool) -> None:
        if pinned and row not in self.hard_pinned:
            self.hard_pinned[row] = None
            self.hard_pinned_bytes += self.catalog.size[row]
        elif not pinned and row in self.hard_pinned:
            del self.hard_pinned[row]
            self.hard_pinned_bytes -= self.catalog.size[row]

    def _checksum_set(self, fact: facts.ChecksumSet) -> None:
        row = self.catalog.by_put.get(fact.put_id)
        invariant(row != NONE, "a fact names an object that is there")
        self.catalog.checksum[row] = fact.checksum
        self.catalog.summed[row] = 1
