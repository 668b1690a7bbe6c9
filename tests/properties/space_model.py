"""Who holds which bytes, as a plain list: the model beside which the master's books are kept.

A `Holding` is an object with copies: being written, readable, or gone and still read. A `Stray` is one extent on which
something may still land. All that both hold is taken; everything else must be free, to the byte. Nothing here knows how
the master keeps its books, chooses places or picks victims.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pykvpool.model.ids import LeaseId, PutId, SegmentId, SessionId
from pykvpool.model.objects import Extent, Pin

ALIGNMENT = 64

OPEN, READABLE, GONE = "open", "readable", "gone"


def rounded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def overlap(one: Extent, other: Extent) -> bool:
    """Do they share a byte that both may use (their padding included)?"""
    return (
        one.segment == other.segment
        and one.offset < other.offset + rounded(other.length)
        and other.offset < one.offset + rounded(one.length)
    )


@dataclass(eq=False)
class Holding:
    """An object, from its grant on."""

    put_id: PutId
    key: bytes
    parent: bytes | None
    pin: Pin
    writer: SessionId
    state: str
    #: Its copies by their place in the grant.
    copies: dict[int, Extent]
    deadline: int
    #: Leases that cover it, with the moment at which each lapses (shared with the lease itself).
    leases: dict[LeaseId, Lease] = field(default_factory=dict)


@dataclass(eq=False)
class Lease:
    id: LeaseId
    expires_at: int
    session: SessionId


@dataclass(eq=False)
class Stray:
    """Something of a writer may still land here."""

    put_id: PutId
    writer: SessionId
    extent: Extent
    #: The writer itself said so: it will write there no more, so cutting its connections is enough.
    given_up: bool


class SpaceModel:
    """All holdings and strays, and what follows from them."""

    def __init__(self) -> None:
        #: Mounted segments: capacity in bytes, and the node.
        self.segments: dict[SegmentId, tuple[int, str]] = {}
        self.holdings: list[Holding] = []
        self.strays: list[Stray] = []
        #: As granted: what the masks of a writer count.
        self.grants: dict[PutId, tuple[SessionId, tuple[Extent, ...]]] = {}
        #: Sessions that are over.
        self.over: set[SessionId] = set()

    # -- what there is -----------------------------------------------------------------------------------------------

    def find(self, key: bytes, *states: str) -> Holding | None:
        return next((each for each in self.holdings if each.key == key and each.state in states), None)

    def by_put(self, put_id: PutId) -> Holding | None:
        return next((each for each in self.holdings if each.put_id == put_id), None)

    def taken(self) -> list[Extent]:
        held = [extent for each in self.holdings for extent in each.copies.values()]
        return held + [stray.extent for stray in self.strays]

    def free_bytes(self, segment: SegmentId) -> int:
        used = sum(rounded(extent.length) for extent in self.taken() if extent.segment == segment)
        return self.segments[segment][0] - used

    def quarantined_bytes(self, segment: SegmentId) -> int:
        return sum(rounded(stray.extent.length) for stray in self.strays if stray.extent.segment == segment)

    def nodes_with_room(self, size: int, without: list[Holding]) -> set[str]:
        """Nodes that have so many bytes in one piece, if `without` were gone."""
        gone = {id(extent) for each in without for extent in each.copies.values()}
        nodes = set()
        for segment, (capacity, node) in self.segments.items():
            ends = [
                (e.offset, e.offset + rounded(e.length))
                for e in self.taken()
                if e.segment == segment and id(e) not in gone
            ]
            free_from = 0
            for start, end in [*sorted(ends), (capacity // ALIGNMENT * ALIGNMENT, 0)]:
                if start - free_from >= rounded(size):
                    nodes.add(node)
                free_from = end
        return nodes

    def has_children(self, holding: Holding, without: list[Holding]) -> bool:
        return any(
            each.state == READABLE and each.parent == holding.key and each not in without for each in self.holdings
        )

    def may_go(self, holding: Holding, after: list[Holding]) -> bool:
        """May it be evicted once `after` are gone?"""
        return (
            holding.state == READABLE
            and not holding.leases
            and holding.pin != Pin.HARD
            and not self.has_children(holding, after)
        )

    def all_that_may_go(self) -> list[Holding]:
        """Tails first, until nothing more may go."""
        gone: list[Holding] = []
        while more := [each for each in self.holdings if each not in gone and self.may_go(each, gone)]:
            gone += more
        return gone

    # -- what happens ------------------------------------------------------------------------------------------------

    def remove(self, holding: Holding) -> None:
        """The key goes; the bytes stay with those who read them."""
        if holding.leases:
            holding.state = GONE
        else:
            self.holdings.remove(holding)

    def end_lease(self, lease: LeaseId) -> None:
        for each in list(self.holdings):
            if each.leases.pop(lease, None) is not None and each.state == GONE and not each.leases:
                self.holdings.remove(each)

    def close(self, holding: Holding, stray: set[int], given_up: bool) -> None:
        """A put ends without an object; something may still land on the copies in `stray`."""
        self.holdings.remove(holding)
        for position in stray:
            if position in holding.copies:
                extent = holding.copies[position]
                self.strays.append(Stray(holding.put_id, holding.writer, extent, given_up))

    def drained(self, put_id: PutId, uncertain: int) -> None:
        """The writer's word on what is in quarantine: it has drained, but for the copies in the mask."""
        _, granted = self.grants[put_id]
        for stray in [each for each in self.strays if each.put_id == put_id]:
            position = granted.index(stray.extent)
            if uncertain >> position & 1:
                stray.given_up = True
            else:
                self.strays.remove(stray)

    def fenced(self, node: str) -> None:
        """The node has cut off whoever could be: writers that are over, and those that gave a put up themselves."""
        self.strays = [
            stray
            for stray in self.strays
            if self.segments[stray.extent.segment][1] != node or not (stray.given_up or stray.writer in self.over)
        ]

    def session_over(self, session: SessionId, has_drained: bool) -> None:
        self.over.add(session)
        for each in list(self.holdings):
            if each.state == OPEN and each.writer == session:
                self.close(each, set() if has_drained else set(each.copies), False)
        if not has_drained:
            return  # its reads may still be under way: its leases last as long as they were granted for
        # Leaving says nothing new of what the writer itself named uncertain before.
        self.strays = [stray for stray in self.strays if stray.writer != session or stray.given_up]
        for lease in {lease for each in self.holdings for lease in each.leases.values() if lease.session == session}:
            self.end_lease(lease.id)

    def unmounted(self, segment: SegmentId) -> None:
        """What lay there is lost, and nothing else."""
        del self.segments[segment]
        self.strays = [stray for stray in self.strays if stray.extent.segment != segment]
        for each in list(self.holdings):
            before = len(each.copies)
            each.copies = {i: extent for i, extent in each.copies.items() if extent.segment != segment}
            if before and not each.copies and each.state == OPEN:
                self.holdings.remove(each)
            elif before and not each.copies and each.state == READABLE:
                self.remove(each)

    def time_is(self, now: int) -> None:
        """Leases lapse; puts run out of time, and nobody knows what of them may still land."""
        for lease in {lease for each in self.holdings for lease in each.leases.values() if lease.expires_at <= now}:
            self.end_lease(lease.id)
        for each in list(self.holdings):
            if each.state == OPEN and each.deadline <= now:
                self.close(each, set(each.copies), False)
