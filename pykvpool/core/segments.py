"""The segments that nodes lend, as the master keeps them: one record per mount, with the space in it.

Conservation (P3): in every segment, free + used + quarantined = capacity after every step, where used is what replicas
and unfinished puts take. A going segment keeps its books until its last replica is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pykvpool.core.allocator import Allocator
from pykvpool.model.facts import SegmentMounted
from pykvpool.model.ids import NodeName, SegmentId, SessionId
from pykvpool.model.objects import SegmentDescriptor


@dataclass(slots=True)
class Segment:
    """One mount of one segment."""

    session: SessionId
    descriptor: SegmentDescriptor
    space: Allocator
    #: Taken bytes on which something may still land: nobody's, until evidence comes.
    quarantined_bytes: int = 0
    #: Why it is going; empty while it serves. Nothing is allocated in it or read from it once this is set.
    going: str = ""
    #: Soft: its node's control connection is gone. Read from last, not written to.
    suspect: bool = False

    @property
    def id(self) -> SegmentId:
        return self.descriptor.segment

    @property
    def node(self) -> NodeName:
        return self.descriptor.node

    @property
    def writable(self) -> bool:
        """May new extents be placed here?"""
        return not self.going and not self.suspect

    @property
    def free_ratio(self) -> float:
        return self.space.free_bytes / self.space.capacity


@dataclass(slots=True)
class Segments:
    """All mounted segments."""

    alignment_bytes: int
    by_id: dict[SegmentId, Segment] = field(default_factory=dict)
    #: Segments that are going now: while there are none, lookups need not ask where an object lies.
    going: set[SegmentId] = field(default_factory=set)
    #: Highest id ever given out.
    last_id: int = 0
    #: Rises whenever other segments may be written to than before.
    version: int = 0

    def mount(self, fact: SegmentMounted) -> Segment:
        descriptor = SegmentDescriptor(fact.segment, fact.generation, fact.node, fact.size_bytes, fact.endpoints)
        segment = Segment(fact.session, descriptor, Allocator(fact.size_bytes, self.alignment_bytes))
        self.by_id[fact.segment] = segment
        self.version += 1
        self.last_id = max(self.last_id, fact.segment)
        return segment

    def set_going(self, segment: SegmentId, reason: str) -> None:
        self.by_id[segment].going = reason
        self.going.add(segment)
        self.version += 1

    def remove(self, segment: SegmentId) -> None:
        del self.by_id[segment]
        self.going.discard(segment)

    def set_suspect(self, session: SessionId, suspect: bool) -> None:
        """The control connection of a node is gone, or back."""
        for segment in self.of_session(session):
            segment.suspect = suspect
            self.version += 1

    def of_session(self, session: SessionId) -> list[Segment]:
        return [segment for segment in self.by_id.values() if segment.session == session]

    def live_capacity_bytes(self) -> int:
        return sum(segment.space.capacity for segment in self.by_id.values() if not segment.going)
