"""A segment goes: by unmount, or with its node. It loses what lay there, and nothing else (P8).

From `SegmentGoing` on no reply names an extent in it; then its replicas are walked in slices, and only they; then it is
`SegmentRemoved`, and with it whatever was quarantined there.
"""

from __future__ import annotations

from pykvpool.core.catalog import NONE, RESIDENT
from pykvpool.core.context import Context
from pykvpool.core.jobs import Work
from pykvpool.core.segments import Segment
from pykvpool.model.facts import ReplicaLost, SegmentGoing, SegmentRemoved
from pykvpool.model.ids import PutId, ScopeId, SegmentId

#: Units of a slice (see `jobs`) that losing one replica, and looking at one open put, cost.
REPLICA_UNITS = 10
PUT_UNITS = 1


def lose_segment(context: Context, segment: Segment, reason: str) -> None:
    """Begin; the rest is done in slices by later steps. Harmless for one that is going already."""
    if segment.going:
        return
    context.counters["segments_lost_total"] += 1
    context.emit(SegmentGoing(segment.id, reason))
    context.run_later(_walk(context, segment.id))


def _walk(context: Context, segment: SegmentId) -> Work:
    state, work = context.state, context.new_slice()
    for put in list(state.puts.by_id.values()):
        units = PUT_UNITS
        if put.put_id in state.puts.by_id and not context.live_extents(put):
            context.close_put(put, (), "segment lost")
            units = REPLICA_UNITS
        if work.spend(units):
            yield
    heads = state.catalog.replicas.heads
    while (replica := heads.get(segment, NONE)) != NONE:
        _lose_replica(context, segment, state.catalog.replicas.object_row[replica])
        if work.spend(REPLICA_UNITS):
            yield
    context.emit(SegmentRemoved(segment))
    context.fences.segment_gone(segment)
    context.hash_requests.segment_gone(segment)
    return None


def _lose_replica(context: Context, segment: SegmentId, row: int) -> None:
    state, catalog = context.state, context.state.catalog
    if catalog.state[row] == RESIDENT and not state.has_copy(row):
        context.remove_object(row, "replicas lost")
        if not catalog.leases[row]:
            return
    context.counters["replicas_lost_total"] += 1
    context.emit(ReplicaLost(ScopeId(catalog.scope[row]), catalog.hash_of(row), PutId(catalog.put_id[row]), segment))
