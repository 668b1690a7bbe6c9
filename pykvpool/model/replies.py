"""What the master answers. Entries of a batch come in the order of its keys."""

from __future__ import annotations

from msgspec import field

from pykvpool.errors import FieldValue, PoolError, from_code
from pykvpool.model.base import Tagged
from pykvpool.model.ids import LeaseId, PutId, ScopeId, SegmentId, SessionId, TicketId
from pykvpool.model.keys import key_text
from pykvpool.model.objects import Extent, ObjectInfo, Pin, SegmentDescriptor


class _Reply(Tagged, frozen=True, tag=True):
    """Base of all replies and of their entries."""


class ErrorInfo(_Reply, frozen=True, tag="error"):
    """A `PoolError` on the wire; alone (the whole command failed) or as an entry of a batch."""

    code: int
    message: str
    fields: dict[str, FieldValue] = field(default_factory=dict)

    @classmethod
    def of(cls, error: PoolError) -> ErrorInfo:
        return cls(error.code, error.message, dict(error.fields))

    def error(self, key: bytes | None = None) -> PoolError:
        """The error to raise. `key`: the entry's, which people who read the message want to know."""
        message = self.message if key is None else f"{key_text(key)}: {self.message}"
        return from_code(self.code, message, self.fields)


class Interned(_Reply, frozen=True, tag="interned"):
    scopes: tuple[ScopeId, ...]


class PutGrant(_Reply, frozen=True, tag="grant"):
    """Room: write the bytes to each extent (all on distinct nodes), then put_end this id."""

    put_id: PutId
    extents: tuple[Extent, ...]


class Existing(_Reply, frozen=True, tag="existing"):
    """Already readable with this size: success without a transfer."""

    put_id: PutId


class Pending(_Reply, frozen=True, tag="pending"):
    """Not decided yet: `in_progress` (another live writer holds the key) or queued for room. Ask with put_wait."""

    ticket: TicketId
    in_progress: bool


class PutStarted(_Reply, frozen=True, tag="put_started"):
    entries: tuple[PutGrant | Existing | Pending | ErrorInfo, ...]
    #: Every segment that a grant names.
    segments: tuple[SegmentDescriptor, ...] = ()


class Done(_Reply, frozen=True, tag="done"):
    """One None (fine) or error per entry; an empty tuple stands for "all fine"."""

    errors: tuple[ErrorInfo | None, ...] = ()
    #: Of put_end: puts that landed on fewer replicas than granted, by position.
    degraded: tuple[int, ...] = ()


class Located(_Reply, frozen=True, tag="located"):
    """One `ObjectInfo` or error per key; `lease` covers all that were found (None: none was)."""

    objects: tuple[ObjectInfo | ErrorInfo, ...]
    lease: LeaseId | None
    lease_ms: int
    segments: tuple[SegmentDescriptor, ...] = ()


class Flags(_Reply, frozen=True, tag="flags"):
    """One byte per key: 1 yes, 0 no."""

    flags: bytes


class Matched(_Reply, frozen=True, tag="matched"):
    count: int
    #: For each position of the command's `presence`: one byte per hash.
    presence: tuple[bytes, ...] = ()
    lease: LeaseId | None = None
    lease_ms: int = 0


class Counted(_Reply, frozen=True, tag="counted"):
    count: int
    #: Objects that matched and stayed because they were leased or hard pinned.
    kept: int = 0


class KeyPage(_Reply, frozen=True, tag="key_page"):
    namespaces: tuple[str, ...]
    keys: tuple[bytes, ...]
    sizes: tuple[int, ...]
    #: 0: this was the last page.
    next_cursor: int


class ObjectStat(_Reply, frozen=True, tag="object_stat"):
    put_id: PutId
    size_bytes: int
    checksum: int | None
    pin: Pin
    leases: int
    depth: int
    orphan: bool
    extents: tuple[Extent, ...]
    #: Milliseconds since it was last used.
    idle_ms: int


class Stats(_Reply, frozen=True, tag="stats"):
    objects: tuple[ObjectStat | ErrorInfo, ...]
    segments: tuple[SegmentDescriptor, ...] = ()


class SegmentState(_Reply, frozen=True, tag="segment_state"):
    segment: SegmentId
    node: str
    capacity_bytes: int
    free_bytes: int
    used_bytes: int
    quarantined_bytes: int
    endpoints: tuple[str, ...]
    #: Its node's control connection is gone, its time has not run out yet.
    suspect: bool


class SessionState(_Reply, frozen=True, tag="session_state"):
    session: SessionId
    name: str
    role: str
    connected: bool
    idle_ms: int
    leases: int
    puts: int
    waiting: int


class State(_Reply, frozen=True, tag="state"):
    segments: tuple[SegmentState, ...]
    sessions: tuple[SessionState, ...]
    objects: int
    object_bytes: int
    leases: int
    open_puts: int
    waiting: int
    scopes: int
    #: Monotonic counters since the master started, by metric name (docs/metrics.md).
    counters: dict[str, int]


class Beat(_Reply, frozen=True, tag="beat"):
    """`ttl_ms`: the session lives this long without another sign of life."""

    ttl_ms: int


class Mounted(_Reply, frozen=True, tag="mounted"):
    segment: SegmentId


class Welcome(_Reply, frozen=True, tag="welcome"):
    """Answer to a hello event: the session is open (or resumed)."""

    session: SessionId
    ttl_ms: int
    lease_ms: int
    #: Random number of this life of the master: interned scopes and sessions of another epoch are void.
    epoch: int
    resumed: bool


Reply = (
    ErrorInfo | Interned | PutStarted | Done | Located | Flags | Matched | Counted | KeyPage | Stats | State | Beat
    | Mounted | Welcome
)  # fmt: skip
