"""What has been decided: the only things that change durable state (`evolve`), and so the journal, the event stream and
what a standby follows. Facts carry extents and durations, never clock readings."""

from __future__ import annotations

from pykvpool.model.base import Tagged
from pykvpool.model.ids import Generation, NodeName, PutId, ScopeId, SegmentId, SessionId
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Extent, Pin


class _Fact(Tagged, frozen=True, tag=True):
    """Base of all facts."""


class ScopeInterned(_Fact, frozen=True, tag="scope_interned"):
    scope_id: ScopeId
    scope: Scope


class SessionOpened(_Fact, frozen=True, tag="session_opened"):
    session: SessionId
    name: str
    role: str
    incarnation: int


class SessionEnded(_Fact, frozen=True, tag="session_ended"):
    """Its commands are refused from now on. Its unfinished puts, if any, went to quarantine by facts of their own."""

    session: SessionId
    #: "goodbye", "expired" or "superseded".
    reason: str


class SegmentMounted(_Fact, frozen=True, tag="segment_mounted"):
    segment: SegmentId
    session: SessionId
    node: NodeName
    generation: Generation
    size_bytes: int
    endpoints: tuple[str, ...]


class SegmentGoing(_Fact, frozen=True, tag="segment_going"):
    """Nothing is allocated in or read from it any more; its replicas go in slices, then it is `SegmentRemoved`."""

    segment: SegmentId
    reason: str


class SegmentRemoved(_Fact, frozen=True, tag="segment_removed"):
    """The last replica of a going segment is gone, and with it everything quarantined there."""

    segment: SegmentId


class PutOpened(_Fact, frozen=True, tag="put_opened"):
    """Extents were given to a writer; nobody can read them yet."""

    put_id: PutId
    session: SessionId
    scope: ScopeId
    hash: bytes
    size_bytes: int
    parent: bytes | None
    pin: Pin
    min_replicas: int
    extents: tuple[Extent, ...]


class ObjectCommitted(_Fact, frozen=True, tag="object_committed"):
    """The put became a readable object on the extents that landed; of the others those named went to quarantine
    (until the writer is fenced there), the rest are free."""

    put_id: PutId
    checksum: int | None
    landed: tuple[Extent, ...]
    quarantined: tuple[Extent, ...] = ()


class PutClosed(_Fact, frozen=True, tag="put_closed"):
    """The put ended without an object. Its extents are free but for those named, which went to quarantine."""

    put_id: PutId
    quarantined: tuple[Extent, ...]
    #: "revoked", "failed", "expired", "superseded", "segment lost".
    reason: str


class QuarantineEnded(_Fact, frozen=True, tag="quarantine_ended"):
    """Evidence arrived that nothing of this put can land in `segment` any more: its extents there are free."""

    put_id: PutId
    segment: SegmentId
    #: "fenced" (the owner's word) or "drained" (the writer's).
    evidence: str


class ObjectRemoved(_Fact, frozen=True, tag="object_removed"):
    """The key is gone. `lingering`: its extents stay taken until `ExtentsFreed`, because readers still hold leases."""

    scope: ScopeId
    hash: bytes
    put_id: PutId
    #: "evicted", "removed", "replicas lost".
    reason: str
    lingering: bool


class ExtentsFreed(_Fact, frozen=True, tag="extents_freed"):
    """The last lease on a lingering object ended."""

    put_id: PutId


class ReplicaLost(_Fact, frozen=True, tag="replica_lost"):
    """One copy is gone with its segment; others remain."""

    scope: ScopeId
    hash: bytes
    put_id: PutId
    segment: SegmentId


class PinChanged(_Fact, frozen=True, tag="pin_changed"):
    scope: ScopeId
    hash: bytes
    pin: Pin


class ChecksumSet(_Fact, frozen=True, tag="checksum_set"):
    put_id: PutId
    checksum: int


Fact = (
    ScopeInterned | SessionOpened | SessionEnded | SegmentMounted | SegmentGoing | SegmentRemoved | PutOpened
    | ObjectCommitted | PutClosed | QuarantineEnded | ObjectRemoved | ExtentsFreed | ReplicaLost | PinChanged
    | ChecksumSet
)  # fmt: skip
