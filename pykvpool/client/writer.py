"""The put path: ask for room, write the bytes, say that they landed; then wait for what had no room.

    PutStart ──► Existing                      done, nothing moved
            ├──► PutGrant ──► write ──► PutEnd done (or PutRevoke, and another try)
            └──► Pending  ──► PutWait ──► Existing | PutGrant | PoolFull

A batch never holds and waits: what was granted is written and committed before the rest is waited for, so writers who
fill the pool together cannot block each other. However a put is left (error, deadline, cancellation), the fabric has
drained first; then its put_ids are revoked, with the replicas named on which something may still land.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from pykvpool.client.fabrics import Fabrics
from pykvpool.client.link import MasterLink
from pykvpool.client.types import ClientStatistics, PutOptions, PutResult
from pykvpool.errors import (
    DeadlineExceeded,
    GpuFailed,
    InvalidArgument,
    PoolError,
    SegmentGone,
    StalePut,
    TransferFailed,
)
from pykvpool.fabric.base import Outcome, Write
from pykvpool.fabric.router import Router
from pykvpool.memory.copying import checksum
from pykvpool.memory.device import Piece, operands
from pykvpool.model.commands import PutEnd, PutForget, PutRevoke, PutStart, PutWait
from pykvpool.model.ids import ScopeId, TicketId
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.model.replies import Done, ErrorInfo, Existing, Pending, PutGrant, PutStarted
from pykvpool.runtime import drain

#: Times a put whose replicas all failed, or went with their node, is started anew on others, within its deadline.
PUT_TRIES = 3
#: A cancelled put lets a write that is under way finish for this long, because a finished write is certain and a broken
#: one leaves its extent in quarantine. Writes take milliseconds; only a peer that hangs meets this bound.
CANCEL_GRACE_S = 1.0
#: How long after its deadline a put that waited still takes the master's decision.
DECISION_GRACE_MS = 1_000
#: Granted objects are written and committed in groups of about this many bytes: large enough that the two requests
#: around a group cost nothing, small enough that the first blocks of a huge batch are readable long before its last.
GROUP_BYTES = 128 << 20


@dataclass(slots=True)
class PutJob:
    """One object on its way into the pool."""

    hash: bytes
    size_bytes: int
    pieces: Sequence[Piece]
    parent: bytes | None = None
    tries: int = 0
    result: PutResult | PoolError | None = None


@dataclass(slots=True)
class _Open:
    """A grant that is neither ended nor revoked yet."""

    job: PutJob
    grant: PutGrant
    #: The segments of its extents, as they were described with the grant.
    segments: Sequence[SegmentDescriptor]
    #: Its write was handed to the fabric.
    started: bool = False
    #: One per extent, once its write is over.
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def landed(self) -> int:
        return sum(1 << i for i, outcome in enumerate(self.outcomes) if outcome.error is None)

    @property
    def uncertain(self) -> int:
        if not self.outcomes:  # never begun: nothing can land; torn off: anything may be under way
            return (1 << len(self.grant.extents)) - 1 if self.started else 0
        return sum(1 << i for i, outcome in enumerate(self.outcomes) if not outcome.settled)

    @property
    def checksum(self) -> int | None:
        return next((o.checksum for o in self.outcomes if o.error is None and o.checksum is not None), None)

    @property
    def failure(self) -> PoolError | None:
        return next((outcome.error for outcome in self.outcomes if outcome.error is not None), None)


class Writer:
    """Runs put batches for one client. Holds no state between them."""

    def __init__(self, link: MasterLink, fabrics: Fabrics, statistics: ClientStatistics) -> None:
        self._link = link
        self._fabrics = fabrics
        self._statistics = statistics

    async def put(self, scope: ScopeId, jobs: Sequence[PutJob], options: PutOptions, deadline_ms: int) -> None:
        """Bring every job to its `result`. Raises only where the whole batch failed (no master, session over); what may
        be tried again in another session has no result then."""
        todo = [job for job in jobs if job.result is None]
        life, router = self._link.life, self._fabrics.router
        while todo:
            for job in todo:
                job.tries += 1
            try:
                await _Batch(self._link, router, life, self._statistics, scope, todo, options, deadline_ms).run()
            finally:
                todo = [job for job in todo if self._worth_another_try(job, deadline_ms)]
                for job in todo:
                    job.result = None
            self._statistics.put_retries += len(todo)

    def _worth_another_try(self, job: PutJob, deadline_ms: int) -> bool:
        """The replicas failed or went, or the grant ran out of time; not the pool: others may do better."""
        return (
            isinstance(job.result, TransferFailed | StalePut | SegmentGone)
            and job.tries < PUT_TRIES
            and self._link.now_ms() < deadline_ms
        )


class _Batch:
    """One PutStart and all that follows from it, within one life of the session.

    It writes through the fabrics of that life alone: owners fence a writer by its incarnation, and a write that began
    later under another name would pass the fence.
    """

    def __init__(
        self, link: MasterLink, router: Router, life: int, statistics: ClientStatistics, scope: ScopeId,
        jobs: Sequence[PutJob], options: PutOptions, deadline_ms: int,
    ) -> None:  # fmt: skip
        self._link = link
        self._router = router
        self._life = life
        self._statistics = statistics
        self._scope = scope
        self._jobs = jobs
        self._options = options
        self._deadline_ms = deadline_ms
        #: Jobs the master has not decided, by ticket.
        self._waiting: dict[TicketId, PutJob] = {}
        #: Grants that must be ended or revoked, whatever happens.
        self._open: list[_Open] = []

    async def run(self) -> None:
        try:
            await self._start()
            while self._waiting:
                await self._wait()
        finally:
            self._give_up_rest()

    async def _start(self) -> None:
        jobs, options = self._jobs, self._options
        remaining_ms = int(self._link.remaining_s(self._deadline_ms) * 1_000) if options.wait else 0
        command = PutStart(
            scope=self._scope,
            hashes=tuple(job.hash for job in jobs),
            sizes=tuple(job.size_bytes for job in jobs),
            parents=tuple(job.parent for job in jobs) if any(job.parent is not None for job in jobs) else (),
            replicas=options.replicas,
            min_replicas=options.must_land,
            min_granted=options.must_be_granted,
            preferred_node=options.preferred_node,
            pin=options.pin,
            wait_ms=remaining_ms,
        )
        await self._carry_out(await self._link.call(command, PutStarted, self._deadline_ms, self._life), jobs)

    async def _wait(self) -> None:
        tickets = tuple(self._waiting)
        jobs = list(self._waiting.values())
        try:
            # The master decides each ticket by its deadline; what it says then (why no room) is worth a moment.
            left_ms = int(self._link.remaining_s(self._deadline_ms) * 1_000)
            command = PutWait(tickets, left_ms + DECISION_GRACE_MS // 2)
            reply = await self._link.call(command, PutStarted, self._deadline_ms + DECISION_GRACE_MS, self._life)
        except DeadlineExceeded:
            for job in jobs:
                job.result = DeadlineExceeded("the deadline passed while the put waited for room or for another writer")
            self._give_up_rest()
            return
        await self._carry_out(reply, jobs)

    async def _carry_out(self, reply: PutStarted, jobs: Sequence[PutJob]) -> None:
        """Act on one entry per job: note results, write what was granted, remember what is pending."""
        self._link.learn(reply.segments)
        still: dict[TicketId, PutJob] = {}
        waited = bool(self._waiting)
        for job, entry in zip(jobs, reply.entries, strict=True):
            match entry:
                case PutGrant():
                    segments = [self._link.segment(extent.segment) for extent in entry.extents]
                    self._open.append(_Open(job, entry, segments))
                case Existing():
                    job.result = PutResult(job.size_bytes, existed=True)
                case Pending():
                    still[entry.ticket] = job
                case ErrorInfo():
                    job.result = entry.error(job.hash)
        if not waited:
            self._statistics.puts_waited += len(still)
        self._waiting = still
        while self._open:
            group = self._next_group()
            await self._write(group)
            await self._end(group)

    def _next_group(self) -> list[_Open]:
        """The first open grants, up to GROUP_BYTES (at least one)."""
        group_bytes = 0
        for count, put in enumerate(self._open):
            group_bytes += put.job.size_bytes
            if group_bytes > GROUP_BYTES and count:
                return self._open[:count]
        return list(self._open)

    async def _write(self, group: Sequence[_Open]) -> None:
        batch = [
            Write(
                segment=segment,
                offset=extent.offset,
                length=extent.length,
                pieces=from_.host,
                put_id=put.grant.put_id,
                want_checksum=replica == 0,
                device=from_.device,
            )
            for put in group
            for from_ in (operands(put.job.pieces),)
            for replica, (segment, extent) in enumerate(zip(put.segments, put.grant.extents, strict=True))
        ]
        timeout_s = self._link.remaining_s(self._deadline_ms)
        for put in group:
            put.started = True
        work = asyncio.ensure_future(self._router.write(batch, timeout_s))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            # Wait (bounded) for outcomes, so that settled extents need no quarantine; then tear it off and drain. A
            # second cancellation ends the wait, never the draining.
            try:
                await asyncio.wait([work], timeout=CANCEL_GRACE_S)
            finally:
                work.cancel()
                await drain(work)
            raise
        finally:
            if work.done() and not work.cancelled() and work.exception() is None:
                rest = iter(work.result())
                for put in group:
                    put.outcomes = [next(rest) for _ in put.grant.extents]

    async def _end(self, group: Sequence[_Open]) -> None:
        """Commit what landed often enough; revoke the rest."""
        fewest = self._options.must_land
        good = [put for put in group if put.landed.bit_count() >= fewest]
        bad = [put for put in group if put.landed.bit_count() < fewest]
        for put in bad:
            put.job.result = self._transfer_error(put)
        if good:
            command = PutEnd(
                puts=tuple(put.grant.put_id for put in good),
                checksums=tuple([await self._checksum(put) for put in good]),
                landed=tuple(put.landed for put in good),
                uncertain=tuple(put.uncertain for put in good),
            )
            reply = await self._link.call(command, Done, self._deadline_ms, self._life)
            errors = reply.errors or (None,) * len(good)
            for put, error in zip(good, errors, strict=True):
                put.job.result = error.error(put.job.hash) if error is not None else self._result(put)
        if bad:
            self._revoke(bad)
        del self._open[: len(group)]

    async def _checksum(self, put: _Open) -> int | None:
        """From the fabric where its CPU saw the bytes of the first copy; else this one looks at them, if it can.

        None: they went from a GPU to the pool past every CPU. The object is then committed unsummed, and the owner
        sums its own copy.
        """
        if put.checksum is not None:
            return put.checksum
        from_ = operands(put.job.pieces)
        return None if from_.device else await self._link.runtime.offload.run(checksum, from_.host)

    def _result(self, put: _Open) -> PutResult:
        schemes = [outcome.scheme for outcome in put.outcomes if outcome.error is None]
        for scheme in schemes:
            self._statistics.wrote(scheme, put.job.size_bytes)
        return PutResult(
            size_bytes=put.job.size_bytes,
            replicas=len(schemes),
            degraded=len(schemes) < self._options.replicas,
            scheme=schemes[0],
        )

    def _transfer_error(self, put: _Open) -> PoolError:
        cause = put.failure
        if isinstance(cause, InvalidArgument | GpuFailed):
            return cause
        return TransferFailed(
            f"{put.landed.bit_count()} of {len(put.grant.extents)} copies landed, {self._options.must_land} are "
            f"required; the first failure: {cause}",
            landed=put.landed.bit_count(),
            required=self._options.must_land,
        )

    def _revoke(self, puts: Sequence[_Open]) -> None:
        command = PutRevoke(tuple(put.grant.put_id for put in puts), tuple(put.uncertain for put in puts))
        self._link.tell(command, self._life)

    def _give_up_rest(self) -> None:
        """Whatever is left open when the batch is left: nothing is, unless it failed, was cancelled or is late."""
        if self._open:
            self._revoke(self._open)
            self._open.clear()
        if self._waiting:
            self._link.tell(PutForget(tuple(self._waiting)), self._life)
            self._waiting.clear()
