"""Unfinished writes, and the extents that may not be used again yet.

A put is *open* from its grant until it is committed or closed. Extents of a closed put on which something may still
land, and failed ones of a committed put, are *quarantined*: nobody's, until evidence comes (the writer's word that it
has drained, the owner's word that the writer is fenced, or the end of the segment). Time is never evidence.

This is durable state: only facts change it. Deadlines, waiters and fences that stand are elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pykvpool.model.ids import PutId, ScopeId, SegmentId, SessionId
from pykvpool.model.objects import Extent, Pin

#: What names an object: its scope and its block hash.
Key = tuple[ScopeId, bytes]


@dataclass(frozen=True, slots=True)
class OpenPut:
    """One attempt to write one object."""

    put_id: PutId
    session: SessionId
    scope: ScopeId
    hash: bytes
    size_bytes: int
    parent: bytes | None
    #: Ancestors known when it was opened.
    depth: int
    pin: Pin
    min_replicas: int
    #: As granted; the masks of put_end count positions here.
    extents: tuple[Extent, ...]

    @property
    def key(self) -> Key:
        return (self.scope, self.hash)


@dataclass(slots=True)
class Quarantined:
    """Extents of one put that wait for evidence."""

    session: SessionId
    #: As granted, to read the masks of a late put_end.
    grant: tuple[Extent, ...]
    #: What still waits, at most one extent per segment (replicas lie on distinct nodes).
    held: dict[SegmentId, Extent] = field(default_factory=dict)


class Puts:
    """Open and quarantined puts."""

    __slots__ = (
        "by_id",
        "by_key",
        "by_place",
        "by_session",
        "last_id",
        "open_bytes",
        "quarantined",
        "quarantined_extents",
    )

    def __init__(self) -> None:
        self.by_id: dict[PutId, OpenPut] = {}
        #: The one open put of a key.
        self.by_key: dict[Key, OpenPut] = {}
        #: Open puts of each session that has any, in order.
        self.by_session: dict[SessionId, dict[PutId, None]] = {}
        self.quarantined: dict[PutId, Quarantined] = {}
        #: Extents that these hold.
        self.quarantined_extents = 0
        #: (writer, segment) -> its quarantined puts there, in order: what one fence answers for.
        self.by_place: dict[tuple[SessionId, SegmentId], dict[PutId, None]] = {}
        #: Object bytes of the extents of open puts.
        self.open_bytes = 0
        #: Highest put_id ever given out.
        self.last_id = 0

    def open(self, put: OpenPut) -> None:
        self.by_id[put.put_id] = put
        self.by_key[put.key] = put
        self.by_session.setdefault(put.session, {})[put.put_id] = None
        self.open_bytes += put.size_bytes * len(put.extents)
        self.last_id = max(self.last_id, put.put_id)

    def close(self, put_id: PutId) -> OpenPut:
        put = self.by_id.pop(put_id)
        del self.by_key[put.key]
        mine = self.by_session[put.session]
        del mine[put_id]
        if not mine:
            del self.by_session[put.session]
        self.open_bytes -= put.size_bytes * len(put.extents)
        return put

    def quarantine(self, put: OpenPut, extent: Extent) -> None:
        record = self.quarantined.get(put.put_id)
        if record is None:
            record = self.quarantined[put.put_id] = Quarantined(put.session, put.extents)
        record.held[extent.segment] = extent
        self.quarantined_extents += 1
        self.by_place.setdefault((put.session, extent.segment), {})[put.put_id] = None

    def end_quarantine(self, put_id: PutId, segment: SegmentId) -> Extent:
        record = self.quarantined[put_id]
        extent = record.held.pop(segment)
        self.quarantined_extents -= 1
        if not record.held:
            del self.quarantined[put_id]
        place = (record.session, segment)
        del self.by_place[place][put_id]
        if not self.by_place[place]:
            del self.by_place[place]
        return extent

    def places_in(self, segment: SegmentId) -> list[tuple[SessionId, SegmentId]]:
        return [place for place in self.by_place if place[1] == segment]

    def is_quarantined(self, session: SessionId) -> bool:
        """Has this session quarantined puts anywhere?"""
        return any(place[0] == session for place in self.by_place)
