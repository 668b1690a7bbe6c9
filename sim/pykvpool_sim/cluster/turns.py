"""One turn of a client: its own random stream, the calls it makes, and how their outcomes are judged.

A turn has a number, and everything it does is drawn from a stream of that number: a history with some turns left out
has all others as they were, which is what makes a failing one smaller (`pykvpool_sim.command.shrink`). Every call is
recorded in the history, and every outcome is judged: the bytes, the kind of the error, the local buffers after it was
over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

from pykvpool.client.types import PutResult
from pykvpool.errors import (
    ChecksumMismatch,
    InternalError,
    InvalidArgument,
    KeyConflict,
    NotOwner,
    PoolError,
    ProtocolError,
)
from pykvpool.model.keys import Scope
from pykvpool_sim.cluster.buffers import PaintedBuffers
from pykvpool_sim.cluster.cluster import Cluster
from pykvpool_sim.cluster.keys import SCOPES, value_of
from pykvpool_sim.cluster.shape import ClientShape
from pykvpool_sim.history import Outcome
from pykvpool_sim.host import Host

T = TypeVar("T")

#: No caller that asks for what is allowed ever meets one of these.
NEVER = (InternalError, ProtocolError, InvalidArgument, KeyConflict, NotOwner)
#: Most keys of one call.
_MAX_BATCH = 6


class CallCancelled(Exception):  # an outcome of the workload's own, no error of the pool
    """A call of ours was cancelled half way, by our own decision."""


class Turn:
    """See the module. `number`: among the turns of this host, over all its lives; 0 is what is no turn (connecting)."""

    def __init__(
        self, cluster: Cluster, host: Host, shape: ClientShape, buffers: PaintedBuffers, number: int = 0
    ) -> None:
        self.cluster = cluster
        self.host = host
        self._shape = shape
        self._process = host.life.name
        #: Empty for what is no turn.
        self.name = f"{host.name}/{number}" if number else ""
        self.draws = cluster.world.draws(f"{host.name}/turn/{number}")
        self.buffers = buffers

    # -- calls ---------------------------------------------------------------------------------------------------

    async def call(self, name: str, call: Coroutine[Any, Any, T], keys: Sequence[bytes] = ()) -> T:
        """Await a call, record and judge it; a part of them is cancelled half way."""
        task = asyncio.ensure_future(call)
        if self.draws.chance(self._shape.cancel_ratio):
            # At once, while the master's answer is on its way, or in the midst of the transfer.
            late_ms = self.draws.between(0, self.draws.choice((2, 400)))
            asyncio.get_running_loop().call_later(late_ms / 1_000, task.cancel)
        try:
            return await self.recorded(name, _as_pool_error(task), keys)
        except asyncio.CancelledError:
            # We are cancelled ourselves: what we began has to end before its buffers are looked at.
            task.cancel()
            await asyncio.wait([task])
            raise

    async def recorded(self, name: str, call: Awaitable[T], keys: Sequence[bytes] = ()) -> T:
        """Await a call, record and judge it."""
        history = self.cluster.world.history
        texts = [key.decode() for key in keys]
        operation = history.invoke(self._process, name, keys=texts, turn=self.name)
        try:
            value = await call
        except PoolError as error:
            history.returns(operation, Outcome.UNKNOWN, error.kind)
            self.judge_error(name, error)
            raise
        except BaseException as error:
            history.returns(operation, Outcome.UNKNOWN, type(error).__name__)
            raise
        history.returns(operation, Outcome.OK, _summary(value))
        return value

    def judge(self, name: str, scope: Scope, results: Sequence[object], keys: Sequence[bytes]) -> None:
        """Errors among the results of a batch."""
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, PoolError):
                self.judge_error(name, result, key)

    def judge_error(self, name: str, error: PoolError, key: bytes | None = None) -> None:
        if isinstance(error, NEVER) and not (isinstance(error, KeyConflict) and key in self.cluster.doubtful):
            self.cluster.verdicts.add("bug", f"{name} by {self._process} gave {error.kind}: {error}", key=key)
        if isinstance(error, ChecksumMismatch) and not self.cluster.shape.decay:
            self.cluster.verdicts.add("P1", f"{name} by {self._process}: {error}", key=key)

    def check_bytes(
        self, name: str, scope: Scope, key: bytes, data: bytes | bytearray | memoryview, begun_ns: int
    ) -> None:
        """P1, where it counts: what a call that began then has returned."""
        self.cluster.guards.returned(self.host.name, begun_ns, key)
        if data != value_of(scope, key):
            self.cluster.verdicts.add(
                "P1", f"{name} by {self._process} returned other bytes for {key!r} in {scope.text()}", key=key
            )

    def check_copies(self, key: bytes, result: PutResult, asked: int | None) -> None:
        """P7: fewer copies than were asked for is said."""
        wanted = self._shape.replicas if asked is None else asked
        if not result.existed and result.degraded != (result.replicas < wanted):
            self.cluster.verdicts.add(
                "P7", f"of {wanted} copies of {key!r} there are {result.replicas}: {result}", key=key
            )

    # -- draws ---------------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """The world's time."""
        return self.cluster.world.loop.now_ns

    def timeout_s(self) -> float:
        return self.draws.between(self._shape.min_timeout_ms, self._shape.max_timeout_ms) / 1_000

    def copies_wanted(self) -> int | None:
        """None: what the client always wants."""
        return len(self.cluster.shape.nodes) if self._shape.everywhere else None

    def scope(self) -> Scope:
        return self.draws.choice(SCOPES)

    def run_of_keys(self) -> tuple[list[bytes], list[bytes | None]]:
        """A run of one chain, and the parent of each."""
        draws, space = self.draws, self.cluster.shape.keys
        chain = draws.between(0, space.chains - 1)
        first = draws.between(0, space.length - 1)
        last = min(space.length, first + draws.between(1, _MAX_BATCH))
        keys = [space.key(chain, index) for index in range(first, last)]
        parents = [space.key(chain, index - 1) if index else None for index in range(first, last)]
        return keys, parents

    def some_keys(self) -> list[bytes]:
        """Any, without repeats."""
        space = self.cluster.shape.keys.all()
        return self.draws.sample(space, min(len(space), self.draws.between(1, _MAX_BATCH)))


async def _as_pool_error(task: asyncio.Future[T]) -> T:
    """A cancellation of the task alone is an outcome like any other; one of whoever waits is not."""
    await asyncio.wait([task])
    if task.cancelled():
        raise CallCancelled("cancelled half way")
    return task.result()


def _summary(value: object) -> object:
    """What of a result goes into the history: kinds and sizes."""
    if isinstance(value, list | tuple):
        return [_summary(one) for one in value]
    if isinstance(value, PoolError):
        return value.kind
    if isinstance(value, bytes | bytearray):
        return len(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    return type(value).__name__
