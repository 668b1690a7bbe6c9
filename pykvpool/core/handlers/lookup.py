"""Reading the catalogue: exists, match_prefix, get_replicas, touch, stat.

The scheduler waits for these, so batches go through C loops: one `map` over the index per scope and portion, and
nothing per hash in Python but the stores that a hold and a touch need. Portions make slices: only very large batches
take more than one. While a segment is going, objects whose only copies lie there do not exist for a reader, nor do
those that are just being evicted; only then is every row looked at.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
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
from pykvpool.core.hold import Hold
from pykvpool.core.jobs import Slice, Work
from pykvpool.core.sessions import Session
from pykvpool.errors import InvalidArgument, KeyNotFound, NotReady
from pykvpool.model.commands import MAX_SCOPES, Exists, GetReplicas, MatchPrefix, Stat, Touch
from pykvpool.model.ids import PutId, RequestId, ScopeId, SegmentId, SessionId
from pykvpool.model.objects import Extent, ObjectInfo, Pin, SegmentDescriptor
from pykvpool.model.replies import ErrorInfo, Flags, Located, Matched, ObjectStat, Stats

#: Hashes that are looked up in one go, and how many of them make a unit of a slice (see `jobs`); using and holding
#: them costs as much again each.
LOOKUP_ROWS = 1_024
LOOKUPS_PER_UNIT = 8
#: Units of a slice that describing one object costs, and objects that are described in one go.
DESCRIBE_UNITS = 4
DESCRIBE_ROWS = 32


def portions(hashes: tuple[bytes, ...], size: int) -> Iterator[tuple[bytes, ...]]:
    """The batch in parts of at most `size` hashes."""
    for begin in range(0, len(hashes), size):
        yield hashes[begin : begin + size]


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


def _units(context: Context, hashes: int) -> int:
    """Of a slice, for looking so many hashes up."""
    return hashes if context.state.hides else 1 + hashes // LOOKUPS_PER_UNIT


def exists(context: Context, session: Session, request_id: RequestId, command: Exists) -> Work:
    check_scope(context, command.scope)
    check_hashes(command.hashes)
    return _exists(context, command)


def _exists(context: Context, command: Exists) -> Work:
    work, flags = context.new_slice(), bytearray()
    for part in portions(command.hashes, LOOKUP_ROWS):
        if work.is_over:
            yield
        if context.state.hides:
            flags += bytes([row != NONE for row in find_rows(context, command.scope, part)])
        else:
            flags += bytes(map(context.state.catalog.index[command.scope].__contains__, part))
        work.spend(_units(context, len(part)))
    _count(context, len(flags), flags.count(1))
    return Flags(bytes(flags))


def touch(context: Context, session: Session, request_id: RequestId, command: Touch) -> Work:
    check_scope(context, command.scope)
    check_hashes(command.hashes)
    return _touch(context, command)


def _touch(context: Context, command: Touch) -> Work:
    work, flags = context.new_slice(), bytearray()
    for part in portions(command.hashes, LOOKUP_ROWS):
        if work.is_over:
            yield
        rows = find_rows(context, command.scope, part)
        context.touch([row for row in rows if row != NONE])
        flags += bytes([row != NONE for row in rows])
        work.spend(2 * _units(context, len(part)))
    return Flags(bytes(flags))


def match_prefix(context: Context, session: Session, request_id: RequestId, command: MatchPrefix) -> Work:
    scopes, presence = command.scopes, command.presence
    check_hashes(command.hashes)
    check_batch("scopes", scopes, MAX_SCOPES)
    check_duration("lease_ms", command.lease_ms)
    for scope in scopes:
        check_scope(context, scope)
    if len(set(presence)) != len(presence) or not all(0 <= position < len(scopes) for position in presence):
        raise InvalidArgument("presence names positions in scopes, each at most once")
    return _match(context, session.id, command)


def _match(context: Context, session: SessionId, command: MatchPrefix) -> Work:
    """First count, scope by scope; then use and hold what was counted. It may have gone in between: look again."""
    hashes, scopes, work = command.hashes, command.scopes, context.new_slice()
    counted = [scope for position, scope in enumerate(scopes) if position not in command.presence]
    hold, count, began = Hold(context, session, command.lease_ms, command.hold), len(hashes), context.state.moment
    found: list[list[int]] = []
    for scope in counted:
        rows = list[int]()
        for part in portions(hashes[:count], LOOKUP_ROWS):
            if work.is_over:
                yield
            rows += find_rows(context, scope, part)
            work.spend(_units(context, len(part)))
            if NONE in rows[-len(part) :]:
                break
        hits = rows.index(NONE) if NONE in rows else len(rows)
        _count(context, count, hits)
        count = hits
        found.append(rows)
    for scope, rows in zip(counted, found, strict=True):
        for begin in range(0, count, LOOKUP_ROWS):
            if work.is_over:
                yield
            part = hashes[begin : min(begin + LOOKUP_ROWS, count)]
            there = rows[begin : begin + len(part)]
            if context.state.moment != began:
                there = find_rows(context, scope, part)
                if NONE in there:
                    there = there[: there.index(NONE)]
                    count = begin + len(there)
            hold.add(there)
            work.spend(2 * _units(context, len(part)))
            if begin + len(part) > count:
                break
    flags = list[bytes]()
    for position in command.presence:
        flags.append((yield from _hold_present(context, scopes[position], hashes, hold, work)))
    lease = hold.start()
    return Matched(count, tuple(flags), lease, hold.lease_ms if lease is not None else 0)


def _hold_present(
    context: Context, scope: ScopeId, hashes: tuple[bytes, ...], hold: Hold, work: Slice
) -> Generator[None, None, bytes]:
    """Which of all hashes are there: one byte for each."""
    flags = bytearray()
    for part in portions(hashes, LOOKUP_ROWS):
        if work.is_over:
            yield
        rows = find_rows(context, scope, part)
        flags += bytes([row != NONE for row in rows])
        hold.add([row for row in rows if row != NONE])
        work.spend(3 * _units(context, len(part)))
    _count(context, len(flags), flags.count(1))
    return bytes(flags)


def get_replicas(context: Context, session: Session, request_id: RequestId, command: GetReplicas) -> Work:
    check_scoped(context, command.scope, command.hashes)
    check_duration("lease_ms", command.lease_ms)
    return _locate(context, session.id, command)


def _locate(context: Context, session: SessionId, command: GetReplicas) -> Work:
    work, hold, rows = context.new_slice(), Hold(context, session, command.lease_ms), list[int]()
    for part in portions(command.hashes, LOOKUP_ROWS):
        if work.is_over:
            yield
        new = find_rows(context, command.scope, part)
        found = [row for row in new if row != NONE]
        _count(context, len(new), len(found))
        # The lease comes first: what is described below in slices stays what it is, and where it is, meanwhile.
        hold.add(found)
        rows += new
        work.spend(3 * _units(context, len(part)))
    while True:
        infos, named = list[ObjectInfo | ErrorInfo](), dict[SegmentId, None]()
        for row, hash_ in zip(rows, command.hashes, strict=True):
            if work.is_over:
                yield
            info = _info(context, command.scope, hash_, row)
            infos.append(info)
            if isinstance(info, ObjectInfo):
                for extent in info.extents:
                    named[extent.segment] = None
            work.spend(DESCRIBE_UNITS)
        if all(context.state.is_alive(segment) for segment in named):
            break
        # A segment went between two slices: no reply names it any more.
    lease = hold.start()
    return Located(tuple(infos), lease, hold.lease_ms if lease else 0, _descriptors(context, named))


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


def _descriptors(context: Context, named: dict[SegmentId, None]) -> tuple[SegmentDescriptor, ...]:
    return tuple(context.state.segments.by_id[segment].descriptor for segment in named)


def stat(context: Context, session: Session, request_id: RequestId, command: Stat) -> Work:
    check_scoped(context, command.scope, command.hashes)
    return _stat(context, command)


def _stat(context: Context, command: Stat) -> Work:
    work = context.new_slice()
    while True:
        stats, named = list[ObjectStat | ErrorInfo](), dict[SegmentId, None]()
        for part in portions(command.hashes, DESCRIBE_ROWS):
            if work.is_over:
                yield
            for row, hash_ in zip(find_rows(context, command.scope, part), part, strict=True):
                entry = _describe(context, command.scope, hash_, row)
                stats.append(entry)
                if isinstance(entry, ObjectStat):
                    for extent in entry.extents:
                        named[extent.segment] = None
            work.spend(DESCRIBE_UNITS * len(part))
        if all(context.state.is_alive(segment) for segment in named):
            return Stats(tuple(stats), _descriptors(context, named))


def _describe(context: Context, scope: ScopeId, hash_: bytes, row: int) -> ObjectStat | ErrorInfo:
    if row == NONE:
        return ErrorInfo.of(key_error(hash_) or missing(context, scope, hash_))
    catalog = context.state.catalog
    return ObjectStat(
        PutId(catalog.put_id[row]), catalog.size[row], catalog.checksum[row] if catalog.summed[row] else None,
        Pin(catalog.pin[row]), catalog.leases[row], catalog.depth[row], catalog.is_orphan(row),
        readable_extents(context, row), context.idle_ms(row),
    )  # fmt: skip
