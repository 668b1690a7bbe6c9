"""Reading the catalogue: exists, match_prefix, get_replicas, touch, stat.

The scheduler waits for these, so whole batches go through C loops: one `map` over the index per scope, and nothing per
hash in Python but the stores that a hold and a touch need. While a segment is going, objects whose only copies lie
there do not exist for a reader; only then is every row looked at.
"""

from __future__ import annotations

from itertools import repeat

from pykvpool.core.catalog import NONE
from pykvpool.core.context import Context
from pykvpool.core.handlers.checks import (
    check_batch,
    check_duration,
    check_hashes,
    check_scope,
    check_scoped,
    key_error,
)
from pykvpool.core.jobs import Work
from pykvpool.core.sessions import Session
from pykvpool.errors import InvalidArgument, KeyNotFound, NotReady
from pykvpool.model.commands import MAX_SCOPES, Exists, GetReplicas, MatchPrefix, Stat, Touch
from pykvpool.model.ids import LeaseId, PutId, RequestId, ScopeId, SegmentId, SessionId
from pykvpool.model.objects import Extent, ObjectInfo, Pin, SegmentDescriptor
from pykvpool.model.replies import ErrorInfo, Flags, Located, Matched, ObjectStat, Stats

#: Units of a slice (see `jobs`) that describing one object costs.
DESCRIBE_UNITS = 4


def find_rows(context: Context, scope: ScopeId, hashes: tuple[bytes, ...]) -> list[int]:
    """Row of each readable object, NONE for the others."""
    rows = list(map(context.state.catalog.index[scope].get, hashes, repeat(NONE)))
    if context.state.hides:
        visible = context.state.is_visible
        rows = [row if row != NONE and visible(row) else NONE for row in rows]
    return rows


def _count(context: Context, hashes: int, hits: int) -> None:
    context.counters["lookup_hashes_total"] += hashes
    context.counters["lookup_hits_total"] += hits


def exists(context: Context, session: Session, request_id: RequestId, command: Exists) -> Flags:
    check_scope(context, command.scope)
    check_hashes(command.hashes)
    if context.state.hides:
        flags = bytes([row != NONE for row in find_rows(context, command.scope, command.hashes)])
    else:
        flags = bytes(map(context.state.catalog.index[command.scope].__contains__, command.hashes))
    _count(context, len(flags), flags.count(1))
    return Flags(flags)


def touch(context: Context, session: Session, request_id: RequestId, command: Touch) -> Flags:
    check_scope(context, command.scope)
    check_hashes(command.hashes)
    rows = find_rows(context, command.scope, command.hashes)
    context.touch([row for row in rows if row != NONE])
    return Flags(bytes([row != NONE for row in rows]))


def match_prefix(context: Context, session: Session, request_id: RequestId, command: MatchPrefix) -> Matched:
    hashes, scopes, presence = command.hashes, command.scopes, command.presence
    check_hashes(hashes)
    check_batch("scopes", scopes, MAX_SCOPES)
    check_duration("lease_ms", command.lease_ms)
    for scope in scopes:
        check_scope(context, scope)
    if len(set(presence)) != len(presence) or not all(0 <= position < len(scopes) for position in presence):
        raise InvalidArgument("presence names positions in scopes, each at most once")
    counted = [scope for position, scope in enumerate(scopes) if position not in presence]
    count = len(hashes)
    found: list[list[int]] = []
    for scope in counted:
        rows = find_rows(context, scope, hashes[:count])
        _count(context, count, count)
        if NONE in rows:
            count = rows.index(NONE)
            context.counters["lookup_hits_total"] -= len(rows) - count
        found.append(rows)
    held: list[int] = []
    for rows in found:
        held += rows[:count] if len(rows) > count else rows
    flags: list[bytes] = []
    for position in presence:
        rows = find_rows(context, scopes[position], hashes)
        there = [row for row in rows if row != NONE]
        flags.append(bytes([row != NONE for row in rows]))
        _count(context, len(rows), len(there))
        held += there
    context.touch(held)
    if not (command.hold and held):
        return Matched(count, tuple(flags))
    lease_ms = context.leases.duration_ms(command.lease_ms)
    return Matched(count, tuple(flags), _lease(context, session.id, held, lease_ms), lease_ms)


def _lease(context: Context, session: SessionId, rows: list[int], lease_ms: int) -> LeaseId:
    capacity = context.state.segments.live_capacity_bytes()
    lease = context.leases.grant(session, rows, lease_ms, context.now, capacity)
    context.counters["leases_granted_total"] += 1
    return lease.id


def get_replicas(context: Context, session: Session, request_id: RequestId, command: GetReplicas) -> Work:
    check_scoped(context, command.scope, command.hashes)
    check_duration("lease_ms", command.lease_ms)
    rows = find_rows(context, command.scope, command.hashes)
    found = [row for row in rows if row != NONE]
    _count(context, len(rows), len(found))
    context.touch(found)
    lease_ms = context.leases.duration_ms(command.lease_ms)
    # The lease comes first: what is described below in slices stays where it is meanwhile.
    lease = _lease(context, session.id, found, lease_ms) if found else None
    return _locate(context, command, rows, lease, lease_ms)


def _locate(context: Context, command: GetReplicas, rows: list[int], lease: LeaseId | None, lease_ms: int) -> Work:
    work, infos = context.new_slice(), list[ObjectInfo | ErrorInfo]()
    for row, hash_ in zip(rows, command.hashes, strict=True):
        infos.append(_info(context, command.scope, hash_, row))
        if work.spend(DESCRIBE_UNITS):
            yield
    if any(not context.state.is_alive(segment) for segment in _named(infos)):
        # A segment went between two slices: no reply names it any more. Leased rows are still what they were.
        infos = [_info(context, command.scope, hash_, row) for row, hash_ in zip(rows, command.hashes, strict=True)]
    return Located(tuple(infos), lease, lease_ms if lease else 0, _descriptors(context, _named(infos)))


def _info(context: Context, scope: ScopeId, hash_: bytes, row: int) -> ObjectInfo | ErrorInfo:
    catalog = context.state.catalog
    if row == NONE:
        return ErrorInfo.of(key_error(hash_) or missing(context, scope, hash_))
    extents = readable_extents(context, row)
    if not extents:
        return ErrorInfo.of(missing(context, scope, hash_))
    checksum = catalog.checksum[row] if catalog.summed[row] else None
    return ObjectInfo(PutId(catalog.put_id[row]), catalog.size[row], checksum, extents)


def missing(context: Context, scope: ScopeId, hash_: bytes) -> KeyNotFound | NotReady:
    """Why a key that is not readable is not."""
    if (scope, hash_) in context.state.puts.by_key:
        return NotReady("the object is still being written")
    return KeyNotFound("no readable object under this key")


def readable_extents(context: Context, row: int) -> tuple[Extent, ...]:
    """Where to read it: not in going segments, and of the others those of suspect nodes last."""
    segments = context.state.segments.by_id
    extents = context.state.catalog.extents(row)
    if len(extents) == 1:
        return extents if not segments[extents[0].segment].going else ()
    alive = [extent for extent in extents if not segments[extent.segment].going]
    alive.sort(key=lambda extent: segments[extent.segment].suspect)
    return tuple(alive)


def _named(infos: list[ObjectInfo | ErrorInfo]) -> dict[SegmentId, None]:
    return dict.fromkeys(extent.segment for info in infos if isinstance(info, ObjectInfo) for extent in info.extents)


def _descriptors(context: Context, named: dict[SegmentId, None]) -> tuple[SegmentDescriptor, ...]:
    return tuple(context.state.segments.by_id[segment].descriptor for segment in named)


def stat(context: Context, session: Session, request_id: RequestId, command: Stat) -> Stats:
    check_scoped(context, command.scope, command.hashes)
    catalog, stats, named = context.state.catalog, list[ObjectStat | ErrorInfo](), dict[SegmentId, None]()
    for row, hash_ in zip(find_rows(context, command.scope, command.hashes), command.hashes, strict=True):
        if row == NONE:
            stats.append(ErrorInfo.of(key_error(hash_) or missing(context, command.scope, hash_)))
            continue
        extents = readable_extents(context, row)
        named.update(dict.fromkeys(extent.segment for extent in extents))
        stats.append(
            ObjectStat(
                PutId(catalog.put_id[row]), catalog.size[row], catalog.checksum[row] if catalog.summed[row] else None,
                Pin(catalog.pin[row]), catalog.leases[row], catalog.depth[row], catalog.is_orphan(row), extents,
                context.idle_ms(row),
            )
        )  # fmt: skip
    return Stats(tuple(stats), _descriptors(context, named))
