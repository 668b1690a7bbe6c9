"""A port whose work is done by one background thread of the engine's own process: nothing else has to be started.

It is the simplest place for the work and not the best: the thread shares the interpreter with the engine, so packing
thousands of keys takes some milliseconds from it. Where a node runs on the host, `pykvpool.host.agent` is better.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable

from pykvpool.host.access import PoolAccess, PoolLine
from pykvpool.host.jobs import AddressMover
from pykvpool.host.thread_port import ThreadPort
from pykvpool.host.work import Emit, PortWork
from pykvpool.model.keys import Scope
from pykvpool.runtime import Runtime


class EmbeddedWorker(PortWork):
    """The jobs of one port, with a connection of its own. A `pykvpool.host.thread_port.Worker`."""

    def __init__(self, access: PoolAccess, runtime: Runtime, emit: Emit) -> None:
        self._own_line = PoolLine(access, runtime)
        super().__init__(self._own_line, AddressMover(), emit)

    @property
    def connected(self) -> bool:
        return self._own_line.connected

    def start(self) -> None:
        self._own_line.start()
        self._loop = asyncio.get_running_loop()
        _workers.add(self)

    async def reset(
        self, scopes: tuple[Scope, ...], timeout_s: float, others: tuple[Awaitable[object], ...] = ()
    ) -> None:
        """Ports of one process belong to one engine: the saves of all are fenced."""
        fences = [
            asyncio.wrap_future(asyncio.run_coroutine_threadsafe(worker.fence_and_wait(scopes), worker._loop))
            for worker in list(_workers)
            if worker is not self
        ]
        await super().reset(scopes, timeout_s, (*others, *fences))

    async def close(self, drain_s: float) -> None:
        _workers.discard(self)
        await super().close(drain_s)
        await self._own_line.close()


#: Workers of this process that are not closed.
_workers: weakref.WeakSet[EmbeddedWorker] = weakref.WeakSet()


class EmbeddedPort(ThreadPort):
    """See `pykvpool.host.port.PoolPort`. It begins to connect at once; nothing here waits for that."""

    def __init__(self, access: PoolAccess) -> None:
        self._access = access
        super().__init__(access.name, lambda runtime, emit: EmbeddedWorker(access, runtime, emit))

    @property
    def placement(self) -> str:
        state = "connected" if self.connected else "which will connect"
        return f"a thread of this process, {state} to {self._access.where} as {self._access.name!r}"
