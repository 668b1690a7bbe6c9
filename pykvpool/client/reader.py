"""The get path: where is it, read it, and may it be believed?

    GetReplicas ──► lease + replicas ──► read ──► `leave` ──► result
                                          └─ failed: the next replica, until none is left

`leave` is the one gate that bytes pass on their way to the caller: the lease must still be trusted *after* the
transfer, and where a CPU saw the bytes their checksum must be the committed one. No read path goes round it. The lease
is released only after the fabric has drained. A part of an object (`Window`) has no committed checksum of its own: the
lease alone vouches for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pykvpool.client.fabrics import Fabrics
from pykvpool.client.held import HeldLease
from pykvpool.client.link import MasterLink
from pykvpool.client.types import ClientStatistics, GetResult
from pykvpool.errors import (
    ChecksumMismatch,
    GpuFailed,
    InvalidArgument,
    KeyNotFound,
    LeaseExpired,
    PoolError,
    TransferFailed,
)
from pykvpool.fabric.base import Outcome, Read
from pykvpool.fabric.router import Router
from pykvpool.memory.buffers import take
from pykvpool.memory.device import Piece, operands
from pykvpool.model.commands import GetReplicas
from pykvpool.model.ids import ScopeId
from pykvpool.model.objects import Extent, ObjectInfo, SegmentDescriptor, Vouch
from pykvpool.model.replies import ErrorInfo, Located

#: Times a whole get is asked anew after its lease ran out or its replicas moved, within its deadline.
GET_TRIES = 3
#: Located objects are read in groups of about this many bytes, each let out as soon as it is there, so that a huge
#: batch does not outlive its lease unread.
GROUP_BYTES = 128 << 20

#: Given the size in bytes, where to put the object: writable pieces of at least that many bytes in total.
Destination = Callable[[int], Sequence[Piece]]


@dataclass(frozen=True, slots=True)
class Window:
    """A part of an object: [offset, offset + length)."""

    offset: int
    length: int


@dataclass(slots=True)
class GetJob:
    """One object, or a part of one, on its way out of the pool."""

    hash: bytes
    name: str
    destination: Destination
    #: None: the whole object.
    window: Window | None = None
    tries: int = 0
    result: GetResult | PoolError | None = None


@dataclass(slots=True)
class _Wanted:
    """A located object: its pieces are cut to what is wanted of it, its replicas are tried in order."""

    job: GetJob
    info: ObjectInfo
    #: What is read of it: all, or the job's window.
    window: Window
    #: Its copies in the order in which they are tried, with the segments as they were described with them.
    replicas: Sequence[tuple[SegmentDescriptor, Extent]]
    pieces: Sequence[Piece]
    next_replica: int = 0
    failures: list[str] = field(default_factory=list)
    last_error: PoolError | None = None

    def take_replica(self) -> tuple[SegmentDescriptor, Extent] | None:
        if self.next_replica >= len(self.replicas):
            return None
        self.next_replica += 1
        return self.replicas[self.next_replica - 1]

    def read(self, segment: SegmentDescriptor, extent: Extent) -> Read:
        window = self.window
        whole = window.length == self.info.size_bytes
        to = operands(self.pieces)
        return Read(
            segment, extent.offset + window.offset, window.length, to.host, want_checksum=whole, device=to.device
        )


def _window(job: GetJob, found: ObjectInfo) -> Window:
    """What is wanted of `found`. Raises `InvalidArgument` where it does not lie within the object."""
    if job.window is None:
        return Window(0, found.size_bytes)
    offset, length = job.window.offset, job.window.length
    if offset < 0 or length < 0 or offset + length > found.size_bytes:
        raise InvalidArgument(
            f"bytes {offset} to {offset + length} of an object of {found.size_bytes}", size_bytes=found.size_bytes
        )
    return job.window


def leave(held: HeldLease, info: ObjectInfo, outcome: Outcome) -> Vouch:
    """The gate: what vouches for bytes that a transfer brought. Raises where nothing does.

    Call it after the transfer has drained and before anyone may look at the bytes.

    Raises:
        LeaseExpired: the extent may have been reused while it was read.
        ChecksumMismatch: these are not the bytes that were committed.
    """
    held.check()
    if outcome.checksum is None or info.checksum is None:
        return Vouch.LEASE
    if outcome.checksum != info.checksum:
        raise ChecksumMismatch(
            f"the bytes read have checksum {outcome.checksum:016x}, committed was {info.checksum:016x}",
            put_id=info.put_id,
        )
    return Vouch.CHECKSUM


class Reader:
    """Runs get batches for one client. Holds no state between them."""

    def __init__(self, link: MasterLink, fabrics: Fabrics, statistics: ClientStatistics) -> None:
        self._link = link
        self._fabrics = fabrics
        self._statistics = statistics

    async def locate(self, scope: ScopeId, hashes: Sequence[bytes], deadline_ms: int) -> tuple[Located, HeldLease]:
        """Replicas of each hash and the lease over those found."""
        return await self._locate(scope, hashes, deadline_ms, self._link.life)

    async def _locate(
        self, scope: ScopeId, hashes: Sequence[bytes], deadline_ms: int, life: int
    ) -> tuple[Located, HeldLease]:
        asked_at_ms = self._link.now_ms()
        reply = await self._link.call(GetReplicas(scope, tuple(hashes)), Located, deadline_ms, life)
        self._link.learn(reply.segments)
        return reply, HeldLease(self._link, reply.lease, reply.lease_ms, asked_at_ms)

    async def get(self, scope: ScopeId, jobs: Sequence[GetJob], deadline_ms: int) -> None:
        """Bring every job to its `result`. Raises only where the whole batch failed (no master, session over)."""
        todo = [job for job in jobs if job.result is None]
        life, router = self._link.life, self._fabrics.router
        while todo:
            for job in todo:
                job.tries += 1
                job.result = None
            # Each object once, however many parts of it are wanted: the lease counts its bytes once then.
            distinct = list(dict.fromkeys(job.hash for job in todo))
            located, held = await self._locate(scope, distinct, deadline_ms, life)
            found = dict(zip(distinct, located.objects, strict=True))
            async with held:
                await self._read(self._prepare(todo, found, router), held, router, deadline_ms)
            todo = [job for job in todo if self._worth_another_try(job, deadline_ms)]
        for job in jobs:
            self._count(job)

    def _worth_another_try(self, job: GetJob, deadline_ms: int) -> bool:
        """Something moved under the read: ask the master again. A miss is an answer."""
        return (
            isinstance(job.result, LeaseExpired | TransferFailed)
            and job.tries < GET_TRIES
            and self._link.now_ms() < deadline_ms
        )

    async def _read(self, wanted: list[_Wanted], held: HeldLease, router: Router, deadline_ms: int) -> None:
        while wanted:
            wanted = await self._read_next_replicas(wanted, held, router, deadline_ms)

    def _prepare(
        self, jobs: Sequence[GetJob], located: Mapping[bytes, ObjectInfo | ErrorInfo], router: Router
    ) -> list[_Wanted]:
        wanted = []
        for job in jobs:
            found = located[job.hash]
            if isinstance(found, ErrorInfo):
                job.result = found.error(job.hash)
                continue
            try:
                window = _window(job, found)
                pieces = take(job.destination(window.length), window.length)
            except InvalidArgument as error:
                job.result = InvalidArgument(f"{job.name}: {error.message}", **error.fields)
                continue
            if not window.length:  # nothing moves
                job.result = GetResult(0, Vouch.LEASE, "", "")
                continue
            replicas = [(self._link.segment(extent.segment), extent) for extent in found.extents]
            if len(replicas) > 1:  # the master's order, but for those that failed us a moment ago
                replicas.sort(key=lambda replica: router.doubts(replica[0]))
            wanted.append(_Wanted(job, found, window, replicas, pieces))
        return wanted

    async def _read_next_replicas(
        self, wanted: list[_Wanted], held: HeldLease, router: Router, deadline_ms: int
    ) -> list[_Wanted]:
        """Read a group of about GROUP_BYTES, each object from its next replica; return those that are not decided."""
        batch: list[Read] = []
        reading: list[_Wanted] = []
        group_bytes = 0
        rest: list[_Wanted] = []
        for position, want in enumerate(wanted):
            if group_bytes + want.window.length > GROUP_BYTES and batch:
                rest = wanted[position:]
                held.keep_alive()
                break
            replica = want.take_replica()
            if replica is None:
                want.job.result = self._no_replica_left(want)
                continue
            segment, extent = replica
            group_bytes += want.window.length
            reading.append(want)
            batch.append(want.read(segment, extent))
        if not batch:
            return []
        # Past the end of the lease the bytes could not be believed: no use in waiting longer for them.
        timeout_s = min(self._link.remaining_s(deadline_ms), max(0.001, held.trusted_for_ms / 1_000))
        outcomes = await router.read(batch, timeout_s)
        failed = [
            want
            for want, read, outcome in zip(reading, batch, outcomes, strict=True)
            if not self._finish(want, read, outcome, held)
        ]
        self._statistics.replica_retries += sum(1 for want in failed if want.next_replica < len(want.replicas))
        return failed + rest

    def _finish(self, want: _Wanted, read: Read, outcome: Outcome, held: HeldLease) -> bool:
        """Let the bytes out, or note why not. True: this object is decided."""
        error = outcome.error
        if error is None:
            try:
                vouch = leave(held, want.info, outcome)
            except LeaseExpired as lapsed:
                self._statistics.leases_lapsed += 1
                want.job.result = lapsed
                return True
            except ChecksumMismatch as mismatch:
                self._statistics.checksum_mismatches += 1
                error = mismatch
            else:
                self._statistics.read(outcome.scheme, want.window.length)
                want.job.result = GetResult(want.window.length, vouch, outcome.scheme, read.segment.node)
                return True
        if read.device and isinstance(error, InvalidArgument | GpuFailed):
            want.job.result = error  # of the caller's own memory: no other replica would do better
            return True
        want.failures.append(f"{read.segment.node}: {error}")
        want.last_error = error
        return False

    def _no_replica_left(self, want: _Wanted) -> PoolError:
        tried = "; ".join(want.failures)
        if isinstance(want.last_error, ChecksumMismatch):
            return ChecksumMismatch(f"{want.job.name}: no replica holds the committed bytes ({tried})")
        return TransferFailed(
            f"{want.job.name}: none of {len(want.info.extents)} replica(s) could be read ({tried})",
            replicas=len(want.info.extents),
        )

    def _count(self, job: GetJob) -> None:
        if isinstance(job.result, KeyNotFound):
            self._statistics.get_misses += 1
        elif isinstance(job.result, PoolError):
            self._statistics.gets_failed += 1
        else:
            self._statistics.gets += 1
