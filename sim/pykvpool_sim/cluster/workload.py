"""What clients do: everything the client's face offers, in random order, and they look at every byte they get.

A client process connects, runs a few workers until it is told to rest, and connects again where it loses its session.
Every call is recorded in the history, so that a run can be compared with another, and every outcome is judged: the
bytes, the kind of the error, the time it took, and the local buffers after it was over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from pykvpool.client import Client, PutItem
from pykvpool.errors import (
    ChecksumMismatch,
    Closed,
    InternalError,
    InvalidArgument,
    KeyConflict,
    NotOwner,
    PoolError,
    ProtocolError,
    SessionExpired,
)
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Pin
from pykvpool_sim.cluster.buffers import PaintedBuffers
from pykvpool_sim.cluster.cluster import Cluster
from pykvpool_sim.cluster.keys import SCOPES, value_of
from pykvpool_sim.cluster.shape import ClientShape
from pykvpool_sim.draws import Draws
from pykvpool_sim.history import Outcome
from pykvpool_sim.host import Host

T = TypeVar("T")

#: No caller that asks for what is allowed ever meets one of these.
NEVER = (InternalError, ProtocolError, InvalidArgument, KeyConflict, NotOwner)
#: A client that lost its session, or found no master, comes back after this.
_COME_BACK_S = 0.3
#: Some clients leave in good order after a while, in the midst of it all, and come back as another session.
_MAX_STAY_MS = 15_000
#: Most keys of one call.
_MAX_BATCH = 6


class ClientProgram:
    """One life of one client process. `await run()` on its host."""

    def __init__(self, cluster: Cluster, host: Host, shape: ClientShape) -> None:
        self._cluster = cluster
        self._host = host
        self._shape = shape
        self._draws: Draws = host.draws("workload")
        self._process = host.life.name
        self.buffers = PaintedBuffers(host.name, cluster.verdicts)

    async def run(self) -> None:
        shape = self._shape
        while not self._cluster.rest.is_set():
            try:
                client = await self._cluster.connect(
                    self._host,
                    name=shape.name if shape.named else None,
                    replicas=shape.replicas,
                    lanes=shape.lanes,
                    blind=shape.blind,
                )
            except PoolError as error:
                self._judge_error("connect", error)
                await asyncio.sleep(_COME_BACK_S)
                continue
            await self._work(client)
            if self._cluster.rest.is_set() and self._draws.chance(0.5):
                # Idle, and connected: what it left behind has to go all the same.
                await asyncio.Event().wait()
            await self._recorded("close", client.close())

    async def _work(self, client: Client) -> None:
        """Until there is nothing to do any more, the session is gone for good, or it is time to leave."""
        workers = [asyncio.ensure_future(self._worker(client)) for _ in range(self._shape.workers)]
        stays_s = self._draws.between(1_000, _MAX_STAY_MS) / 1_000 if self._draws.chance(0.3) else None
        await asyncio.wait(workers, timeout=stays_s, return_when=asyncio.FIRST_EXCEPTION)
        for worker in workers:
            worker.cancel()
        for worker in workers:
            await asyncio.wait([worker])
            error = None if worker.cancelled() else worker.exception()
            if error is not None and not isinstance(error, SessionExpired | Closed):
                self._cluster.verdicts.add("bug", f"{self._process} met {error!r}")

    async def _worker(self, client: Client) -> None:
        draws, verbs = self._draws, [verb for verb, _ in VERBS.values()]
        while not self._cluster.rest.is_set():
            await asyncio.sleep(draws.between(0, self._shape.think_ms) / 1_000)
            (verb,) = draws.choices(verbs, self._shape.weights)
            try:
                await verb(self, client)
            except (SessionExpired, Closed):
                raise
            except (PoolError, CallCancelled):
                continue  # recorded and judged

    # -- calls ---------------------------------------------------------------------------------------------------

    async def call(self, name: str, call: Coroutine[Any, Any, T], keys: Sequence[bytes] = ()) -> T:
        """Await a call, record and judge it; a part of them is cancelled half way."""
        task = asyncio.ensure_future(call)
        if self._draws.chance(self._shape.cancel_ratio):
            asyncio.get_running_loop().call_later(self._draws.between(0, 400) / 1_000, task.cancel)
        try:
            return await self._recorded(name, _as_pool_error(task), keys)
        except asyncio.CancelledError:
            # We are cancelled ourselves: what we began has to end before its buffers are looked at.
            task.cancel()
            await asyncio.wait([task])
            raise

    async def _recorded(self, name: str, call: Awaitable[T], keys: Sequence[bytes] = ()) -> T:
        history = self._cluster.world.history
        operation = history.invoke(self._process, name, keys=[key.decode() for key in keys])
        try:
            value = await call
        except PoolError as error:
            history.returns(operation, Outcome.UNKNOWN, error.kind)
            self._judge_error(name, error)
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
                self._judge_error(name, result, scope, key)

    def _judge_error(self, name: str, error: PoolError, scope: Scope | None = None, key: bytes | None = None) -> None:
        if isinstance(error, NEVER):
            self._cluster.verdicts.add("bug", f"{name} by {self._process} gave {error.kind}: {error}", key=key)
        if isinstance(error, ChecksumMismatch) and not self._cluster.shape.decay:
            self._cluster.verdicts.add("P1", f"{name} by {self._process}: {error}", key=key)

    def check_bytes(
        self, name: str, scope: Scope, key: bytes, data: bytes | bytearray | memoryview, begun_ns: int
    ) -> None:
        """P1, where it counts: what a call that began then has returned."""
        self._cluster.guards.returned(self._host.name, begun_ns, key)
        if data != value_of(scope, key):
            self._cluster.verdicts.add(
                "P1", f"{name} by {self._process} returned other bytes for {key!r} in {scope.text()}", key=key
            )

    # -- draws ---------------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """The world's time."""
        return self._cluster.world.loop.now_ns

    def timeout_s(self) -> float:
        return self._draws.between(self._shape.min_timeout_ms, self._shape.max_timeout_ms) / 1_000

    def scope(self) -> Scope:
        return self._draws.choice(SCOPES)

    def run_of_keys(self) -> tuple[list[bytes], list[bytes | None]]:
        """A run of one chain, and the parent of each."""
        draws, space = self._draws, self._cluster.shape.keys
        chain = draws.between(0, space.chains - 1)
        first = draws.between(0, space.length - 1)
        last = min(space.length, first + draws.between(1, _MAX_BATCH))
        keys = [space.key(chain, index) for index in range(first, last)]
        parents = [space.key(chain, index - 1) if index else None for index in range(first, last)]
        return keys, parents

    def some_keys(self) -> list[bytes]:
        """Any, without repeats."""
        space = self._cluster.shape.keys.all()
        return self._draws.sample(space, min(len(space), self._draws.between(1, _MAX_BATCH)))

    @property
    def draws(self) -> Draws:
        return self._draws


async def _put(program: ClientProgram, client: Client) -> None:
    draws, scope = program.draws, program.scope()
    keys, parents = program.run_of_keys()
    if draws.chance(0.2):
        parents = [None] * len(keys)
    sources = []
    for key in keys:
        value = value_of(scope, key)
        source = program.buffers.borrow(len(value))
        source[: len(value)] = value
        sources.append((source, memoryview(source)[: len(value)]))
    items = [PutItem(key, view, parent) for key, (_, view), parent in zip(keys, sources, parents, strict=True)]
    try:
        results = await program.call(
            "put",
            client.put_batch(
                items,
                scope=scope,
                replicas=draws.between(1, 3) if draws.chance(0.2) else None,
                preferred_node=draws.choice(("", "node-0", "node-1")),
                pin=Pin.SOFT if draws.chance(0.1) else Pin.NONE,
                timeout_s=program.timeout_s(),
            ),
            keys,
        )
    finally:
        for source, view in sources:
            view.release()
            program.buffers.give_back(source)
    program.judge("put", scope, results, keys)


async def _get(program: ClientProgram, client: Client) -> None:
    begun_ns = program.now_ns()
    scope, keys = program.scope(), program.some_keys()
    results = await program.call("get", client.get_batch(keys, scope=scope, timeout_s=program.timeout_s()), keys)
    program.judge("get", scope, results, keys)
    for key, result in zip(keys, results, strict=True):
        if not isinstance(result, PoolError):
            program.check_bytes("get", scope, key, result, begun_ns)


async def _get_into(program: ClientProgram, client: Client) -> None:
    begun_ns = program.now_ns()
    scope, (keys, _) = program.scope(), program.run_of_keys()
    targets = [program.buffers.borrow(len(value_of(scope, key))) for key in keys]
    try:
        results = await program.call(
            "get_into", client.get_into_batch(keys, targets, scope=scope, timeout_s=program.timeout_s()), keys
        )
        program.judge("get_into", scope, results, keys)
        for key, target, result in zip(keys, targets, results, strict=True):
            if not isinstance(result, PoolError):
                program.check_bytes("get_into", scope, key, target[: result.size_bytes], begun_ns)
    finally:
        for target in targets:
            program.buffers.give_back(target)


async def _match(program: ClientProgram, client: Client) -> None:
    """As a scheduler does: hold what matches, load it a while later."""
    draws, scope = program.draws, program.scope()
    keys, _ = program.run_of_keys()
    hold = draws.chance(0.7)
    match = await program.call(
        "match_prefix", client.match_prefix(keys, [scope], hold=hold, timeout_s=program.timeout_s()), keys
    )
    if match.hold is None:
        return
    async with match.hold as held:
        if draws.chance(0.6):
            held.keep_alive()
        await asyncio.sleep(draws.between(0, 3_000) / 1_000)
        matched = keys[: match.count]
        begun_ns = program.now_ns()
        if matched:
            results = await program.call(
                "get", client.get_batch(matched, scope=scope, timeout_s=program.timeout_s()), matched
            )
            program.judge("get", scope, results, matched)
            for key, result in zip(matched, results, strict=True):
                if not isinstance(result, PoolError):
                    program.check_bytes("get", scope, key, result, begun_ns)


async def _view(program: ClientProgram, client: Client) -> None:
    begun_ns = program.now_ns()
    scope, (key, *_) = program.scope(), program.some_keys()
    view = await program.call("view", client.view(key, scope=scope, timeout_s=program.timeout_s()), [key])
    async with view:
        await asyncio.sleep(program.draws.between(0, 500) / 1_000)
        program.check_bytes("view", scope, key, view.data, begun_ns)


async def _remove(program: ClientProgram, client: Client) -> None:
    scope, keys = program.scope(), program.some_keys()
    force = program.draws.chance(0.3)
    results = await program.call(
        "remove", client.remove_batch(keys, force=force, scope=scope, timeout_s=program.timeout_s()), keys
    )
    program.judge("remove", scope, results, keys)


async def _remove_all(program: ClientProgram, client: Client) -> None:
    scope = program.scope()
    pattern = f"chain-{program.draws.between(0, 5)}/*"
    await program.call(
        "remove_all",
        client.remove_all(pattern, namespace=scope.namespace, timeout_s=program.timeout_s()),
        [pattern.encode()],
    )


async def _pin(program: ClientProgram, client: Client) -> None:
    """Hard pins are taken back, sooner or later: a pool that is pinned full is full for good."""
    scope, keys = program.scope(), program.some_keys()[:2]
    await program.call("pin", client.pin(keys, Pin.HARD, scope=scope, timeout_s=program.timeout_s()), keys)
    await asyncio.sleep(program.draws.between(0, 2_000) / 1_000)
    await program.call("unpin", client.unpin(keys, scope=scope, timeout_s=program.timeout_s()), keys)


async def _touch(program: ClientProgram, client: Client) -> None:
    scope, keys = program.scope(), program.some_keys()
    await program.call("touch", client.touch(keys, scope=scope, timeout_s=program.timeout_s()), keys)


async def _exists(program: ClientProgram, client: Client) -> None:
    scope, keys = program.scope(), program.some_keys()
    await program.call("exists", client.exists(keys, scope=scope, timeout_s=program.timeout_s()), keys)


async def _state(program: ClientProgram, client: Client) -> None:
    await program.call("state", client.state(timeout_s=program.timeout_s()))


Verb = Callable[[ClientProgram, Client], Coroutine[Any, Any, None]]

#: What a client may do, and how often: each client draws one of the weights. Removals are rare, or the pool is never
#: full.
VERBS: dict[str, tuple[Verb, tuple[int, ...]]] = {
    "put": (_put, (2, 8, 16)),
    "get": (_get, (0, 2, 8)),
    "get_into": (_get_into, (0, 2, 8)),
    "match": (_match, (0, 2, 8)),
    "view": (_view, (0, 1, 2)),
    "remove": (_remove, (0, 0, 1)),
    "remove_all": (_remove_all, (0, 0, 0, 1)),
    "pin": (_pin, (0, 1)),
    "touch": (_touch, (0, 1)),
    "exists": (_exists, (0, 1)),
    "state": (_state, (0, 1)),
}


class CallCancelled(Exception):  # an outcome of the workload's own, no error of the pool
    """A call of ours was cancelled half way, by our own decision."""


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
