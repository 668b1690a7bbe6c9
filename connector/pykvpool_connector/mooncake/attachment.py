"""A store's life on the pool: one background loop with a client on it, and the nodes that lend this process's memory.

It begins with `setup` and ends with `close`, or with the interpreter. Any thread may call `run`; closing lets the calls
that are under way end first (their transfers end as closed, drained), so that no thread waits for ever and no buffer is
written to afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pykvpool.cli.servers import running_node
from pykvpool.client import Client
from pykvpool.client.sync import LoopThread
from pykvpool.config import Config
from pykvpool.errors import Closed, ConfigError, InternalError, KeyNotFound, PoolError
from pykvpool.fabric.addresses import HostPort
from pykvpool.fabric.registry import DEFAULT_FABRICS
from pykvpool.runtime import real_runtime
from pykvpool_connector.mooncake.holds import Holds
from pykvpool_connector.mooncake.pointers import Pointers
from pykvpool_connector.mooncake.settings import StoreSettings

T = TypeVar("T")

#: Seconds within which a wrong master address is an error.
CONNECT_TIMEOUT_S = 5.0
#: Tries to listen on a port that was free a moment ago.
PORT_TRIES = 5
#: Seconds that calls of other threads get to end while their store is closed.
CLOSE_DRAIN_S = 10.0
#: Names of this host that only it can reach.
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


class Attachment:
    """An open store. Made by `open`."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self.pointers = Pointers()
        #: Name of the node that lends the segment; the plain host name for a pure client.
        self.hostname = settings.hostname
        #: Whether a segment is lent under `hostname`.
        self.lends = settings.segment_bytes > 0
        self._pid = os.getpid()
        self._thread = LoopThread("pykvpool-mooncake")
        #: Nodes that were lent by `lend`, by their names.
        self._lent: dict[str, contextlib.AsyncExitStack] = {}
        #: Closed in reverse order: the client before the nodes, the nodes before their threads.
        self._stack = contextlib.AsyncExitStack()
        self._calls = threading.Condition()
        #: Unpinning under way; the loop itself refers to its tasks weakly.
        self._background: dict[asyncio.Task[None], None] = {}
        #: Calls of other threads that are under way; none begin once `_closed`.
        self._active = 0
        self._closed = False

    @classmethod
    def open(cls, settings: StoreSettings) -> Attachment:
        """Connect, and lend the segment. Raises `Unavailable`, `Refused`, `ConfigError`; nothing is left behind."""
        attachment = cls(settings)
        try:
            attachment._thread.run(attachment._begin())
        except BaseException:
            attachment.close()
            raise
        return attachment

    @property
    def own_node(self) -> str:
        """Name of the node that lends this process's segment, "" for a pure client."""
        return self.hostname if self.lends else ""

    async def _begin(self) -> None:
        settings, pool = self.settings, self.settings.own.pool
        runtime = real_runtime()
        self._stack.callback(runtime.offload.close)
        if self.lends:
            self.hostname = await self._lend(settings.segment_bytes, self._stack)
        self.client = await Client.connect(
            settings.master,
            token=pool.token or None,
            cluster=pool.cluster,
            namespace=settings.namespace,
            timeout_s=settings.own.client.timeout_s,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            fabrics=DEFAULT_FABRICS,
            runtime=runtime,
        )
        self._stack.push_async_callback(self.client.close)
        self.holds = Holds(self.client)

    # -- calls -----------------------------------------------------------------------------------------------------

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work()`` on the loop and wait. Raises what it raises; `Closed` in a closed store or a forked child."""
        if os.getpid() != self._pid:
            raise Closed("this store was set up before the process forked: set it up anew in the child")
        with self._calls:
            if self._closed:
                raise Closed("the store is closed")
            self._active += 1
        try:
            return self._thread.run(work())
        finally:
            with self._calls:
                self._active -= 1
                self._calls.notify_all()

    def close(self) -> None:
        """End transfers, give memory back, leave. Harmless twice, and in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._calls:
            if self._closed:
                return
            self._closed = True
        self._end()

    def abandon(self) -> None:
        """`close` for a store that nobody refers to any more.

        A garbage collection may find it at any moment, also while an event loop runs in this thread. That may be the
        very loop which has to close, so it is not waited for.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.close()
        else:
            threading.Thread(target=self.close, name="pykvpool-mooncake-close").start()

    def _end(self) -> None:
        try:
            self._thread.run(self._stack.aclose())
            with self._calls:
                self._calls.wait_for(lambda: not self._active, CLOSE_DRAIN_S)
        finally:
            self._thread.stop()

    # -- on the loop -----------------------------------------------------------------------------------------------

    async def lend(self, size_bytes: int) -> str:
        """Lend more memory, as a node of its own; returns its name."""
        stack = await self._stack.enter_async_context(contextlib.AsyncExitStack())
        name = await self._lend(size_bytes, stack, own_port=False)
        self._lent[name] = stack
        return name

    async def take_back(self, name: str) -> None:
        """Take lent memory back. Raises `KeyNotFound` for a name that `lend` did not give."""
        stack = self._lent.pop(name, None)
        if stack is None:
            raise KeyNotFound(f"no segment {name!r} was lent by this store")
        await stack.aclose()

    def unpin_later(self, keys: list[bytes], after_ms: int) -> None:
        """Take soft pins off when their time has come; a pin whose store is closed before stays soft."""

        async def unpin() -> None:
            # Not tried again: a soft pin only delays eviction.
            with contextlib.suppress(PoolError):
                await self.client.unpin(keys)

        def begin() -> None:
            task = loop.create_task(unpin())
            self._background[task] = None
            task.add_done_callback(lambda done: self._background.pop(done, None))

        loop = asyncio.get_running_loop()
        loop.call_later(after_ms / 1_000, begin)

    async def _lend(self, size_bytes: int, stack: contextlib.AsyncExitStack, *, own_port: bool = True) -> str:
        """Start a node named ``host:port`` after where it listens, as Mooncake names its segments."""
        settings = self.settings
        fixed = settings.port if own_port else None
        for tries_left in reversed(range(PORT_TRIES)):
            port = _free_port() if fixed is None else fixed
            name = str(HostPort(settings.host, port))
            try:
                await stack.enter_async_context(running_node(self._node_config(name, port, size_bytes)))
            except ConfigError as error:
                # Somebody took the port between two of our steps: another one then.
                if fixed is not None or not tries_left or "port is taken" not in error.message:
                    raise
            else:
                return name
        raise InternalError("the last try either lends or raises")

    def _node_config(self, name: str, port: int, size_bytes: int) -> Config:
        settings = self.settings
        own, host = settings.own, settings.host
        local = host in LOOPBACK_HOSTS
        everywhere = "[::]" if ":" in host else "0.0.0.0"
        node = dataclasses.replace(
            own.node,
            name=name,
            segment_size=size_bytes,
            data_listen=f"tcp://{'127.0.0.1' if local else everywhere}:{port}",
            advertise=own.node.advertise or ("" if local else host),
            fabrics=DEFAULT_FABRICS,
            http_listen="",
        )
        return dataclasses.replace(own, node=node, pool=dataclasses.replace(own.pool, master=settings.master))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
