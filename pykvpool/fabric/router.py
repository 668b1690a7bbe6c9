"""Sends each operation by the cheapest fabric that reaches its segment, and by the next one when that fails.

A batch may span many segments: it is cut into groups of one fabric and one segment, which run at once; operations on
GPU memory are groups of their own, which `device_mover` carries over the fabric chosen. A read that failed is tried on
the next fabric; a write only if its outcome is settled, as otherwise its first attempt may still land. A fabric that
failed for a segment is tried last there for a while. The two rules of `base` hold through here, as every attempt has
ended before the next begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

from pykvpool.errors import (
    Closed,
    DeadlineExceeded,
    GpuFailed,
    InvalidArgument,
    NotSupported,
    PoolError,
    SegmentGone,
    StalePut,
    Unavailable,
)
from pykvpool.fabric.base import FabricClient, Outcome, Read, Write
from pykvpool.fabric.device_mover import Mover
from pykvpool.fabric.tasks import run_all
from pykvpool.model.ids import Generation
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import Clock

#: How long a fabric that failed for a segment is put behind the others there.
FAILURE_MEMORY_MS = 5_000
#: Failures remembered; the oldest are forgotten first.
MAX_FAILURES = 4_096
#: The caller's own errors: they say nothing about a fabric, and another would only repeat them.
_CALLERS_OWN = (InvalidArgument, StalePut, GpuFailed)


@runtime_checkable
class ViewMapper(Protocol):
    """A fabric client that can show a segment's own memory."""

    async def map_view(self, segment: SegmentDescriptor, offset: int, length: int) -> memoryview | None: ...


@dataclass(frozen=True, slots=True)
class MappedView:
    """A read-only view of a segment's own memory, and the fabric that gave it."""

    data: memoryview
    scheme: str


@dataclass(slots=True)
class _Attempts:
    """What has been tried for one operation."""

    tried: list[FabricClient] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Router:
    """A `FabricClient` made of others. Owns them, and its mover: `close` closes them."""

    scheme = "router"
    cost = 0

    def __init__(self, clients: Sequence[FabricClient], clock: Clock, mover: Mover | None = None) -> None:
        """`mover` carries operations on GPU memory; None: there are none."""
        self._mover = mover
        self._clients = sorted(clients, key=lambda client: client.cost)
        self._clock = clock
        #: (scheme, generation) -> until when (ms) that fabric comes last for that mount; in order of failure.
        self._failed_until: dict[tuple[str, Generation], int] = {}
        self._closed = False

    @property
    def schemes(self) -> tuple[str, ...]:
        """The fabrics in the order in which they are tried."""
        return tuple(client.scheme for client in self._clients)

    def reaches(self, segment: SegmentDescriptor) -> str | None:
        """The endpoint that would be tried first, None: no fabric of ours reaches it."""
        candidates = self._candidates(segment)
        return candidates[0].reaches(segment) if candidates else None

    def doubts(self, segment: SegmentDescriptor) -> bool:
        """Every fabric that reaches the segment failed there lately: try another replica first."""
        now_ms = self._clock.now_ms()
        return all(
            self._failed_until.get((client.scheme, segment.generation), 0) > now_ms
            for client in self._clients
            if client.reaches(segment) is not None
        )

    async def read(self, batch: Sequence[Read], timeout_s: float) -> list[Outcome]:
        return await self._route(batch, timeout_s)

    async def write(self, batch: Sequence[Write], timeout_s: float) -> list[Outcome]:
        return await self._route(batch, timeout_s)

    async def map_view(self, segment: SegmentDescriptor, offset: int, length: int) -> MappedView | None:
        """A read-only view of the segment itself through the cheapest fabric that offers one, else None.

        Raises `SegmentGone` and `InvalidArgument`; a fabric that merely failed is passed over.
        """
        for client in self._candidates(segment):
            if not isinstance(client, ViewMapper):
                continue
            try:
                view = await client.map_view(segment, offset, length)
            except PoolError as error:
                if isinstance(error, (InvalidArgument, SegmentGone, Closed)):
                    raise
                self._remember(client, segment, error)
                continue
            if view is not None:
                return MappedView(view, client.scheme)
        return None

    async def close(self) -> None:
        self._closed = True
        for client in self._clients:
            await client.close()
        if self._mover is not None:
            await self._mover.close()

    async def _route(self, batch: Sequence[Read | Write], timeout_s: float) -> list[Outcome]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        outcomes: list[Outcome | None] = [None] * len(batch)
        attempts = [_Attempts() for _ in batch]
        pending = list(range(len(batch)))
        while pending:
            groups = self._group(batch, attempts, outcomes, pending)
            left_s = max(0.0, deadline - loop.time())
            results = await run_all([self._attempt(client, batch, group, left_s) for client, group in groups])
            pending = []
            for (client, group), result in zip(groups, results, strict=True):
                for index, outcome in zip(group, result, strict=True):
                    outcomes[index] = outcome
                    if outcome.error is not None:
                        self._note(client, batch[index], attempts[index], outcome.error)
                        if _may_repeat(batch[index], outcome):
                            pending.append(index)
            pending.sort()
        return [self._final(outcome, attempt) for outcome, attempt in zip(outcomes, attempts, strict=True)]

    def _group(
        self,
        batch: Sequence[Read | Write],
        attempts: list[_Attempts],
        outcomes: list[Outcome | None],
        pending: list[int],
    ) -> list[tuple[FabricClient, list[int]]]:
        """The next fabric for each pending operation; operations that have none left keep the outcome they have."""
        groups: dict[tuple[str, Generation, bool], tuple[FabricClient, list[int]]] = {}
        candidates: dict[Generation, list[FabricClient]] = {}
        for index in pending:
            segment = batch[index].segment
            if segment.generation not in candidates:
                candidates[segment.generation] = self._candidates(segment)
            tried = attempts[index].tried
            client = next((one for one in candidates[segment.generation] if one not in tried), None)
            if client is not None:
                tried.append(client)
                kind = (client.scheme, segment.generation, bool(batch[index].device))
                groups.setdefault(kind, (client, []))[1].append(index)
            elif outcomes[index] is None:
                outcomes[index] = Outcome(error=self._unreachable(segment))
        return list(groups.values())

    async def _attempt(
        self, client: FabricClient, batch: Sequence[Read | Write], group: list[int], timeout_s: float
    ) -> list[Outcome]:
        operations = [batch[index] for index in group]
        if operations[0].device:
            return await self._move(client, operations, timeout_s)
        if isinstance(operations[0], Write):
            return await client.write(cast("list[Write]", operations), timeout_s)
        return await client.read(cast("list[Read]", operations), timeout_s)

    async def _move(self, client: FabricClient, operations: Sequence[Read | Write], timeout_s: float) -> list[Outcome]:
        if self._mover is None:
            return [Outcome(error=InvalidArgument("GPU memory cannot be moved here")) for _ in operations]
        return await self._mover.move(client, operations, timeout_s)

    def _candidates(self, segment: SegmentDescriptor) -> list[FabricClient]:
        """Fabrics that reach the segment: the cheapest first, those that failed there lately last."""
        now_ms = self._clock.now_ms()
        reaching = [client for client in self._clients if client.reaches(segment) is not None]
        return sorted(
            reaching, key=lambda client: self._failed_until.get((client.scheme, segment.generation), 0) > now_ms
        )

    def _note(self, client: FabricClient, operation: Read | Write, attempts: _Attempts, error: PoolError) -> None:
        attempts.failures.append(f"{client.scheme}: {error.message}")
        if not _is_callers_own(error):
            self._remember(client, operation.segment, error)

    def _remember(self, client: FabricClient, segment: SegmentDescriptor, error: PoolError) -> None:
        if isinstance(error, (SegmentGone, Closed)):
            return  # the mount is over, or we are: no word on the fabric
        key = (client.scheme, segment.generation)
        self._failed_until.pop(key, None)
        self._failed_until[key] = self._clock.now_ms() + FAILURE_MEMORY_MS
        if len(self._failed_until) > MAX_FAILURES:
            del self._failed_until[next(iter(self._failed_until))]

    def _unreachable(self, segment: SegmentDescriptor) -> PoolError:
        if self._closed:
            return Closed("the fabrics are closed")
        return Unavailable(
            f"no fabric reaches segment {segment.segment} of node {segment.node!r}: it offers "
            f"{', '.join(segment.endpoints) or 'no endpoint'}, we have {', '.join(self.schemes) or 'none'}"
        )

    @staticmethod
    def _final(outcome: Outcome | None, attempts: _Attempts) -> Outcome:
        """The last outcome; if several fabrics failed, its error tells of all."""
        if outcome is None:
            return Outcome(error=Unavailable("nothing was tried"))
        if outcome.error is None or len(attempts.failures) < 2:
            return outcome
        error = type(outcome.error)("; ".join(attempts.failures), **outcome.error.fields)
        return Outcome(error=error, settled=outcome.settled, scheme=outcome.scheme)


def _may_repeat(operation: Read | Write, outcome: Outcome) -> bool:
    """Whether another fabric may be tried after this failure."""
    error = outcome.error
    if error is None or _is_callers_own(error) or isinstance(error, DeadlineExceeded):
        return False
    return outcome.settled or isinstance(operation, Read)


def _is_callers_own(error: PoolError) -> bool:
    # NotSupported is one in general; from a fabric it means that this fabric cannot, and another may.
    return isinstance(error, _CALLERS_OWN) and not isinstance(error, NotSupported)
