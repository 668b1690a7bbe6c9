"""How to reach a pool and as whom, and a connection to it that is always either there or on its way.

An engine starts, serves and goes on without its pool, so nobody waits here for a master: `PoolLine` connects in the
background, again and again, and says at any moment whether there is a pool to work with. Work that was begun is given
up soon after the connection is gone: for an engine computing again is better than waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pykvpool.client import Client
from pykvpool.client.link import OnRemoved
from pykvpool.errors import Closed, DeadlineExceeded, InternalError, PoolError, SessionExpired, Unavailable
from pykvpool.fabric.rdma.settings import DEFAULT_SETTINGS, RdmaSettings
from pykvpool.fabric.registry import DEFAULT_FABRICS
from pykvpool.model.keys import Scope
from pykvpool.runtime import Runtime
from pykvpool.transport.backoff import Backoff

log = logging.getLogger("pykvpool.host")

T = TypeVar("T")

#: How often a connection is looked at (s): cheap, and soon enough for a load that waits.
LOOK_S = 0.1
#: For this long (s) after a connection was lost its return is waited for; then what waits is given up, and what comes
#: later fails at once. A blip heals in a tenth of that, and a session that the master gave up (an engine that loads its
#: model may stand still for long) is opened anew.
PATIENCE_S = 1.0
#: Bounds the calls of work that has a deadline of its own (s).
CALL_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class PoolAccess:
    """How to reach a pool and as whom."""

    #: Addresses of the master, tried in order.
    masters: tuple[str, ...]
    #: Of the session; unique in the cluster, one of the same name is superseded.
    name: str
    cluster: str = ""
    token: str | None = None
    #: "client", or "reader" for one that may not write.
    role: str = "client"
    #: Ways that blocks may move, as for `Client.connect`.
    fabrics: tuple[str, ...] = DEFAULT_FABRICS
    #: Which RDMA devices, and how, where `fabrics` names rdma.
    rdma: RdmaSettings = DEFAULT_SETTINGS
    #: Copies of each block.
    replicas: int = 1
    connect_timeout_s: float = 5.0

    @property
    def where(self) -> str:
        """For people."""
        return " or ".join(self.masters)


class PoolLine:
    """One client of the pool, connected whenever that is possible. Lives on one loop: `start`, then `close`."""

    def __init__(self, access: PoolAccess, runtime: Runtime) -> None:
        self._access = access
        self._runtime = runtime
        self._client: Client | None = None
        #: Why there is no connection at the moment; for people and for counting.
        self._trouble: PoolError = Unavailable(f"not connected yet to {access.where}")
        self._keeper: asyncio.Task[None] | None = None
        #: The connection has been gone for longer than patience lasts.
        self._is_down = False
        #: Asks for a look at the connection at once; and says that one was taken.
        self._look_now = asyncio.Event()
        self._looked = asyncio.Event()
        #: Work under way, and of it what was given up because the connection is gone. Dicts: in order of creation.
        self._under_way: dict[asyncio.Task[object], None] = {}
        self._given_up: dict[asyncio.Task[object], None] = {}
        #: Who wants to know when the connection comes or goes, and what was said last.
        self._followers: dict[int, Callable[[bool], None]] = {}
        self._last_follower = 0
        self._said = False
        #: Who is told of keys that leave a scope; and the scopes that the present client was asked to watch.
        self._watchers: dict[Scope, dict[int, OnRemoved]] = {}
        self._last_watcher = 0
        self._watched: dict[Scope, None] = {}

    @property
    def connected(self) -> bool:
        """There is a pool to work with. Any thread may ask."""
        client = self._client
        return client is not None and client.connected

    def follow(self, tell: Callable[[bool], None]) -> Callable[[], None]:
        """`tell` is called on the loop whenever the connection comes or goes. Returns what ends that."""
        self._last_follower += 1
        number = self._last_follower
        self._followers[number] = tell

        def unfollow() -> None:
            self._followers.pop(number, None)

        return unfollow

    def watch(self, number: int, scopes: Sequence[Scope], tell: OnRemoved) -> None:
        """`tell` is called on the loop of keys that leave `scopes`, from soon on. `number`: of who watches, from
        `new_watcher`; `unwatch` ends it all."""
        for scope in scopes:
            self._watchers.setdefault(scope, {})[number] = tell

    def new_watcher(self) -> int:
        self._last_watcher += 1
        return self._last_watcher

    def unwatch(self, number: int) -> None:
        """Harmless for one that does not watch."""
        for watchers in self._watchers.values():
            watchers.pop(number, None)

    def start(self) -> None:
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"pykvpool line {self._access.name}")

    async def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Do `work` with the client. Raises what it raises, and `Unavailable` at once without a connection, or soon
        after it is lost; then what `work` had begun has drained."""
        client = await self._usable()

        async def begin() -> T:
            return await work(client)

        task = asyncio.ensure_future(begin())
        self._under_way[task] = None
        try:
            return await task
        except asyncio.CancelledError:
            if task in self._given_up and not _is_cancelling():
                raise self._trouble from None
            raise
        finally:
            self._under_way.pop(task, None)
            self._given_up.pop(task, None)

    async def _usable(self) -> Client:
        """The client, when it is connected: one that was a moment ago is waited for. Raises why it is not."""
        client = self._client
        if client is None:
            raise self._trouble
        if not client.connected:
            self._look_now.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await self._return_of(client)
            if not client.connected:
                raise self._trouble
        return client

    async def _return_of(self, client: Client) -> None:
        """Until it is connected, or given up for now."""
        while not (client.connected or self._is_down):
            self._looked.clear()
            await self._looked.wait()

    async def close(self) -> None:
        """Whoever uses `run` has ended before. Harmless twice."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        client, self._client = self._client, None
        self._trouble = Closed("the port to the pool is closed")
        if client is not None:
            await client.close()

    async def _keep(self) -> None:
        """Connect, watch the connection, connect again."""
        access, backoff = self._access, Backoff(self._runtime.random)
        while True:
            try:
                self._client = await Client.connect(
                    access.masters, name=access.name, role=access.role, token=access.token, cluster=access.cluster,
                    replicas=access.replicas, min_replicas=1, timeout_s=CALL_TIMEOUT_S,
                    connect_timeout_s=access.connect_timeout_s, fabrics=access.fabrics, rdma=access.rdma,
                    runtime=self._runtime,
                )  # fmt: skip
            except Exception as failure:  # noqa: BLE001 - whatever it is, the next try may go well
                self._note(explained(failure))
                await asyncio.sleep(backoff.next_s())
                continue
            log.info("%s is connected to the pool at %s", access.name, access.where)
            self._tell()
            await self._watch(self._client)
            return

    async def _watch(self, client: Client) -> None:
        """The session comes back by itself after a cut; here it is only seen how long that takes. One that is over is
        opened anew at once, so that the next job need not find out."""
        backoff, loop = Backoff(self._runtime.random), asyncio.get_running_loop()
        gone_since: float | None = None
        while True:
            self._look_now.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look_now.wait(), LOOK_S)
            self._tell()
            if client.connected:
                self._is_down, gone_since = False, None
                self._looked.set()
                await self._ask_to_watch(client)
                backoff.reset()
                continue
            if gone_since is None:
                gone_since = loop.time()
                self._note(Unavailable(f"the connection to {self._access.where} is gone"))
            try:
                await client.revive()
            except SessionExpired as error:
                self._note(error)  # another process has the name now: two that take it from each other help nobody
                self._is_down = True
                self._give_up()
                return
            except Exception as failure:  # noqa: BLE001 - as above
                self._note(explained(failure))
                await asyncio.sleep(backoff.next_s())
            if loop.time() - gone_since > PATIENCE_S:
                self._is_down = True
                self._give_up()
            self._looked.set()

    async def _ask_to_watch(self, client: Client) -> None:
        """What is to be watched and is not yet. A failure is tried again at the next look."""
        new = [scope for scope in self._watchers if scope not in self._watched]
        if not new:
            return
        try:
            await client.watch(new, self._removed)
        except PoolError as error:
            log.info("%s: blocks that leave the pool are not told of yet: %s", self._access.name, error)
        else:
            self._watched.update(dict.fromkeys(new))

    def _removed(self, scope: Scope, keys: tuple[bytes, ...]) -> None:
        for tell in list(self._watchers.get(scope, {}).values()):
            tell(scope, keys)

    def _tell(self) -> None:
        connected = self.connected
        if connected != self._said:
            self._said = connected
            for tell in list(self._followers.values()):
                tell(connected)

    def _give_up(self) -> None:
        for task in self._under_way:
            self._given_up[task] = None
            task.cancel()

    def _note(self, error: PoolError) -> None:
        if error.message != self._trouble.message:
            log.warning("%s has no pool at %s: %s", self._access.name, self._access.where, error)
        self._trouble = error


def explained(failure: BaseException) -> PoolError:
    """As an error of the pool: a host may have no descriptors or memory left; anything else that is none is a bug."""
    if isinstance(failure, PoolError):
        return failure
    if isinstance(failure, TimeoutError):
        return DeadlineExceeded("it was not over within its time")
    if isinstance(failure, OSError):
        return Unavailable(f"this host gives no more: {failure.strerror or failure}")
    log.error("the pool met a bug", exc_info=failure)
    return InternalError(f"a bug in the pool: {failure!r}")


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
