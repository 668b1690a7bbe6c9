"""The same client for programs without an event loop: every method blocks, any thread may call.

One background thread runs a loop and the asynchronous client on it; a method here hands the call over and waits. A
waiting call that is interrupted (Ctrl-C) is cancelled on the loop and drained before the interrupt goes on, so that the
caller's buffers are its own again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from pykvpool.client.client import Client
from pykvpool.client.types import ClientStatistics, Key, ListedKey, PrefixMatch
from pykvpool.client.views import View
from pykvpool.errors import Closed
from pykvpool.memory.buffers import RegisteredBuffer
from pykvpool.memory.cuda import RegisteredGpu
from pykvpool.model.keys import Scope
from pykvpool.runtime import new_event_loop

P = ParamSpec("P")
T = TypeVar("T")

#: How long an interrupted call may take to drain before the interrupt is passed on regardless.
INTERRUPT_DRAIN_S = 10.0


class LoopThread:
    """An event loop on a daemon thread of its own."""

    def __init__(self, name: str = "pykvpool") -> None:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Run `work` on the loop and wait for it. Raises what it raises, `Closed` where the loop is stopped."""
        future = self.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            with contextlib.suppress(BaseException):
                # cancel() of a concurrent future does not wait for the task: ask the loop when it is idle again.
                asyncio.run_coroutine_threadsafe(_settled(), self._loop).result(INTERRUPT_DRAIN_S)
            raise

    def post(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call `function` on the loop soon; never waits. Raises `Closed` where the loop is stopped."""
        try:
            self._loop.call_soon_threadsafe(functools.partial(function, *args, **kwargs))
        except RuntimeError:
            raise Closed("this client is closed: connect a new one") from None

    def submit(self, work: Coroutine[object, object, T]) -> Future[T]:
        """Begin `work` on the loop. Raises `Closed` where the loop is stopped."""
        if self._loop.is_closed() or not self._thread.is_alive():
            work.close()
            raise Closed("this client is closed: connect a new one")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """End every task, stop the loop, join the thread. Harmless twice, and from the thread itself."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(RuntimeError):  # stopped meanwhile by another thread
            asyncio.run_coroutine_threadsafe(_cancel_rest(), self._loop).result(INTERRUPT_DRAIN_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(INTERRUPT_DRAIN_S)
        if not self._thread.is_alive():
            self._loop.close()


def _others() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def _settled() -> None:
    cancelling = [task for task in _others() if task.cancelling()]
    if cancelling:
        await asyncio.wait(cancelling)


async def _cancel_rest() -> None:
    rest = _others()
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest)
    await asyncio.get_running_loop().shutdown_asyncgens()


class _Sync(Protocol):
    """What `blocking` needs of its owner."""

    _client: Client
    _thread: LoopThread


def blocking(method: Callable[Concatenate[Client, P], Awaitable[T]]) -> Callable[Concatenate[_Sync, P], T]:
    """The blocking twin of an asynchronous method, with the same parameters and documentation."""

    def call(self: _Sync, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def run() -> T:
            return await method(self._client, *args, **kwargs)

        return self._thread.run(run())

    call.__name__ = method.__name__
    call.__qualname__ = f"SyncClient.{method.__name__}"
    call.__doc__ = method.__doc__
    return call


class SyncPrefixMatch:
    """A `PrefixMatch` whose hold may be released from any thread; a context manager."""

    def __init__(self, match: PrefixMatch, thread: LoopThread) -> None:
        self.count = match.count
        self.presence = match.presence
        self._hold = match.hold
        self._thread = thread

    def release(self) -> None:
        """Give up the lease over what matched. Harmless twice, and without a hold."""
        hold = self._hold
        if hold is not None:

            async def run() -> None:
                hold.release()

            self._thread.run(run())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class SyncClient:
    """Blocking twin of `Client`: same methods, same results, same errors."""

    def __init__(
        self,
        client: Client,
        thread: LoopThread,
        after: Callable[[], Coroutine[object, object, None]] | None = None,
    ) -> None:
        self._client = client
        self._thread = thread
        #: What else lives on the loop and must end after the client (an embedded pool).
        self._after = after
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def connect(cls, master: str | Sequence[str], **options: Any) -> SyncClient:
        """As `Client.connect`, with the same parameters."""
        thread = LoopThread()
        try:
            client = thread.run(Client.connect(master, **options))
        except BaseException:
            thread.stop()
            raise
        return cls(client, thread)

    put = blocking(Client.put)
    put_batch = blocking(Client.put_batch)
    put_from = put
    get = blocking(Client.get)
    get_batch = blocking(Client.get_batch)
    get_into = blocking(Client.get_into)
    get_into_batch = blocking(Client.get_into_batch)
    get_into_new = blocking(Client.get_into_new)
    get_ranges_into = blocking(Client.get_ranges_into)
    exists = blocking(Client.exists)
    touch = blocking(Client.touch)
    stat = blocking(Client.stat)
    state = blocking(Client.state)
    remove = blocking(Client.remove)
    remove_batch = blocking(Client.remove_batch)
    remove_all = blocking(Client.remove_all)
    remove_scopes = blocking(Client.remove_scopes)
    pin = blocking(Client.pin)
    unpin = blocking(Client.unpin)

    _match_prefix = blocking(Client.match_prefix)

    def match_prefix(
        self,
        hashes: Sequence[Key],
        scopes: Sequence[Scope] | None = None,
        *,
        presence: Sequence[int] = (),
        hold: bool = False,
        timeout_s: float | None = None,
    ) -> SyncPrefixMatch:
        """As `Client.match_prefix`; a hold is released by `release()` or by leaving a ``with``."""
        match = self._match_prefix(hashes, scopes, presence=presence, hold=hold, timeout_s=timeout_s)
        return SyncPrefixMatch(match, self._thread)

    def list_keys(self, pattern: str = "*", *, namespace: str | None = None) -> list[ListedKey]:
        """All keys whose text matches the shell pattern. `namespace`: None the client's own, "" all."""

        async def run() -> list[ListedKey]:
            return [listed async for listed in self._client.list_keys(pattern, namespace=namespace)]

        return self._thread.run(run())

    @contextlib.contextmanager
    def view(self, key: Key, *, scope: Scope | None = None, timeout_s: float | None = None) -> Iterator[View]:
        """``with pool.view(key) as view: use(view.data)``. See `Client.view`."""

        async def enter() -> View:
            view = await self._client.view(key, scope=scope, timeout_s=timeout_s)
            return await view.__aenter__()

        view = self._thread.run(enter())
        try:
            yield view
        except BaseException as error:
            self._thread.run(view.__aexit__(type(error), error, error.__traceback__))
            raise
        self._thread.run(view.__aexit__(None, None, None))

    def register(self, buffer: object) -> RegisteredBuffer | RegisteredGpu:
        """As `Client.register`."""
        return self._client.register(buffer)

    def unregister(self, buffer: RegisteredBuffer | RegisteredGpu) -> None:
        """As `Client.unregister`."""
        self._client.unregister(buffer)

    def statistics(self) -> ClientStatistics:
        """As `Client.statistics`."""
        return self._client.statistics()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def namespace(self) -> str:
        return self._client.namespace

    def close(self) -> None:
        """As `Client.close`; ends the background thread too. Harmless twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._thread.run(self._end())
        finally:
            self._thread.stop()

    async def _end(self) -> None:
        await self._client.close()
        if self._after is not None:
            await self._after()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
