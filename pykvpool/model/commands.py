"""What a session may ask of the master. Every verb is a batch; a batch shares one scope.

Columns run in parallel: ``hashes[i]``, ``sizes[i]`` and ``parents[i]`` speak of the same key. The reply of a batch has
one entry per key in the same order (`pykvpool.model.replies`).
"""

from __future__ import annotations

from pykvpool.model.base import Tagged
from pykvpool.model.ids import Generation, LeaseId, PutId, ScopeId, SegmentId, SessionId, TicketId
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Pin

#: Most keys in one command. 16,384 hashes of 32 bytes make a frame of about 600 KiB and a step of about 10 ms when
#: every one needs room; clients split larger batches, the master refuses them.
MAX_BATCH_KEYS = 16_384
#: Most scopes in one match_prefix: ranks x groups of a large engine.
MAX_SCOPES = 256
#: Most copies of one object.
MAX_REPLICAS = 8


class _Command(Tagged, frozen=True, tag=True):
    """Base of all commands."""


class Intern(_Command, frozen=True, tag="intern"):
    """Give small numbers to scopes. -> `Interned`"""

    scopes: tuple[Scope, ...]


class PutStart(_Command, frozen=True, tag="put_start"):
    """Ask for room for new objects. -> `PutStarted`, one `PutGrant`, `Existing`, `Pending` or error per key.

    `sizes[i]` is the size in bytes of the object under `hashes[i]`, `parents[i]` the hash of the block before it in its
    chain (None: it is the first); an empty `parents` means that no key has one. `wait_ms` is how long a key that finds
    no room may queue.
    """

    scope: ScopeId
    hashes: tuple[bytes, ...]
    sizes: tuple[int, ...]
    parents: tuple[bytes | None, ...] = ()
    replicas: int = 1
    #: Fewest replicas with which the put counts as landed.
    min_replicas: int = 1
    preferred_node: str = ""
    pin: Pin = Pin.NONE
    wait_ms: int = 30_000
    #: Fewest extents with which the put may start where nodes or room are short. 0: as many as `min_replicas`.
    min_granted: int = 0


class PutWait(_Command, frozen=True, tag="put_wait"):
    """Wait until at least one ticket is decided or `timeout_ms` passed. -> `PutStarted`, one entry per ticket.

    Tickets are this session's own, from `Pending` entries; an undecided one comes back as `Pending` again.
    """

    tickets: tuple[TicketId, ...]
    timeout_ms: int


class PutForget(_Command, frozen=True, tag="put_forget"):
    """Give up on tickets: queued ones leave the queue, a grant made meanwhile is revoked (nothing was written).
    -> `Done`; unknown tickets are harmless."""

    tickets: tuple[TicketId, ...]


class PutEnd(_Command, frozen=True, tag="put_end"):
    """The bytes have landed and the writer has drained. -> `Done`, one None or error per put.

    `landed[i]` is a bit mask over the replicas of the grant, in its order; `checksums[i]` is xxh3-64, None: unsummed.
    `uncertain[i]` is a mask of failed replicas on which something may still land (a broken connection whose bytes are
    under way): they go to quarantine until the session is fenced there; other failed ones are free at once. An empty
    tuple means that all is certain. Ending a put that is no longer open gives `StalePut`, and is still evidence that
    frees what was quarantined for it.
    """

    puts: tuple[PutId, ...]
    checksums: tuple[int | None, ...]
    landed: tuple[int, ...]
    uncertain: tuple[int, ...] = ()


class PutRevoke(_Command, frozen=True, tag="put_revoke"):
    """Undo unfinished puts; says that the writer has drained, so that their extents are free at once, but for those
    named in the `uncertain` masks (see `PutEnd`). -> `Done`"""

    puts: tuple[PutId, ...]
    uncertain: tuple[int, ...] = ()


class GetReplicas(_Command, frozen=True, tag="get_replicas"):
    """Where are these objects? Grants one lease over those found. -> `Located`"""

    scope: ScopeId
    hashes: tuple[bytes, ...]
    lease_ms: int = 0  # 0: the master's default


class Renew(_Command, frozen=True, tag="renew"):
    """Extend leases to `lease_ms` from now. -> `Done`; a lapsed lease gives `LeaseExpired`, never a new life."""

    leases: tuple[LeaseId, ...]
    lease_ms: int = 0


class Release(_Command, frozen=True, tag="release"):
    """Give leases up. Releasing twice, or a lapsed one, is harmless. -> `Done`"""

    leases: tuple[LeaseId, ...]


class Exists(_Command, frozen=True, tag="exists"):
    """Which keys are readable? -> `Flags`"""

    scope: ScopeId
    hashes: tuple[bytes, ...]


class MatchPrefix(_Command, frozen=True, tag="match_prefix"):
    """How many of the first `hashes` are readable in *every* scope? -> `Matched`

    `presence` lists positions in `scopes` for which the reply also says, hash by hash, what is there (sliding windows
    need only the end). Scopes named in `presence` do not shorten the count of the others. With `hold` one lease covers
    the matched blocks of the counted scopes and the present ones of the others.
    """

    hashes: tuple[bytes, ...]
    scopes: tuple[ScopeId, ...]
    presence: tuple[int, ...] = ()
    hold: bool = False
    lease_ms: int = 0


class Watch(_Command, frozen=True, tag="watch"):
    """Be told of blocks that leave these scopes from now on (`BlocksRemoved`), while connected. -> `Done`"""

    scopes: tuple[ScopeId, ...]


class Touch(_Command, frozen=True, tag="touch"):
    """Mark as just used. -> `Flags` (was it there)"""

    scope: ScopeId
    hashes: tuple[bytes, ...]


class SetPin(_Command, frozen=True, tag="pin"):
    """Pin or unpin. -> `Done`"""

    scope: ScopeId
    hashes: tuple[bytes, ...]
    pin: Pin


class Remove(_Command, frozen=True, tag="remove"):
    """Unlink objects. Without `force` a leased or hard-pinned one is refused (`Leased`); with it the key goes at once
    and the bytes when the leases end. -> `Done`"""

    scope: ScopeId
    hashes: tuple[bytes, ...]
    force: bool = False


class RemoveAll(_Command, frozen=True, tag="remove_all"):
    """Unlink every object of `namespace` (empty: of all) whose key text matches the shell pattern `pattern`, in slices.
    -> `Counted`; leased or hard-pinned objects stay, and are counted, unless `force`. Where `scopes` names any, only
    objects of those."""

    namespace: str = ""
    pattern: str = "*"
    force: bool = False
    scopes: tuple[ScopeId, ...] = ()


class ListKeys(_Command, frozen=True, tag="list_keys"):
    """A page of keys. `cursor` is 0 or the `next_cursor` of the page before. -> `KeyPage`"""

    namespace: str = ""
    pattern: str = "*"
    cursor: int = 0
    limit: int = 1_000


class Stat(_Command, frozen=True, tag="stat"):
    """Facts about objects, without a lease or a touch. -> `Stats`"""

    scope: ScopeId
    hashes: tuple[bytes, ...]


class ClusterState(_Command, frozen=True, tag="cluster_state"):
    """The whole state in numbers. -> `State`"""


class Heartbeat(_Command, frozen=True, tag="heartbeat"):
    """I live. -> `Beat`"""


class Goodbye(_Command, frozen=True, tag="goodbye"):
    """The session ends; all its transfers have drained, but for what it named uncertain before. -> `Done`"""


# -- nodes only --------------------------------------------------------------------------------------------------


class Mount(_Command, frozen=True, tag="mount"):
    """Lend a segment. -> `Mounted`. A remount is a new segment with a new generation."""

    generation: Generation
    size_bytes: int
    endpoints: tuple[str, ...]


class Unmount(_Command, frozen=True, tag="unmount"):
    """Take a segment back at once; replicas in it are gone. -> `Done`"""

    segment: SegmentId


class Fenced(_Command, frozen=True, tag="fenced"):
    """The owner's word: nothing of `session` can land in `segment` that it began before fence `number`. -> `Done`"""

    session: SessionId
    segment: SegmentId
    number: int


class Hashed(_Command, frozen=True, tag="hashed"):
    """The owner hashed its own copy of an unsummed object. -> `Done`"""

    segment: SegmentId
    puts: tuple[PutId, ...]
    checksums: tuple[int, ...]


Command = (
    Intern | PutStart | PutWait | PutForget | PutEnd | PutRevoke | GetReplicas | Renew | Release | Exists | MatchPrefix
    | Watch | Touch | SetPin | Remove | RemoveAll | ListKeys | Stat | ClusterState | Heartbeat | Goodbye
    | Mount | Unmount | Fenced | Hashed
)  # fmt: skip
