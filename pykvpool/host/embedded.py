"""A port whose work is done by one background thread of the engine's own process: nothing else has to be started.

It is the simplest place for the work and not the best: the thread shares the interpreter with the engine, so packing
thousands of keys takes some milliseconds from it. Where a node runs on the host, `pykvpool.host.agent` is better.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import logging

from pykvpool.client.sync import LoopThread
from pykvpool.errors import Closed, PoolError
from pykvpool.host.access import PoolAccess, PoolLine
from pykvpool.host.port import Answer, Lapsed, LoadDone, LoadJob, Lookup, PortEvent, SaveDone, SaveJob
from pykvpool.host.work import CLOSED, PortWork
from pykvpool.model.keys import Scope
from pykvpool.runtime import Runtime, real_runtime

log = logging.getLogger("pykvpool.host")

#: How long the end of everything may take beyond what the caller gave to the saves (s): transfers drain, and the master
#: is told.
END_S = 15.0


class EmbeddedPort:
    """See `pykvpool.host.port.PoolPort`. It begins to connect at once; nothing here waits for that."""

    def __init__(self, access: PoolAccess, runtime: Runtime | None = None) -> None:
        self._access = access
        self._runtime = runtime or real_runtime()
        self._owns_runtime = runtime is None
        self._line = PoolLine(access, self._runtime)
        #: Filled by the background thread, emptied by the engine's.
        self._events: collections.deque[PortEvent] = collections.deque()
        #: Lookups that were not released: only of these anything is told. The engine's thread alone uses it.
        self._lookups: set[int] = set()
        self._closed = False
        self._thread = LoopThread(f"pykvpool {access.name}")
        self._work = self._thread.run(self._start())

    async def _start(self) -> PortWork:
        self._line.start()
        return PortWork(self._line, self._events.append)

    @property
    def placement(self) -> str:
        return f"a thread of this process, connected to {self._access.where} as {self._access.name!r}"

    @property
    def connected(self) -> bool:
        return self._line.connected

    def save(self, job: SaveJob) -> None:
        try:
            self._thread.post(self._work.save, job)
        except Closed:
            blocks = sum(len(group.keys) for group in job.groups)
            self._events.append(SaveDone(job.job_id, dropped=blocks, reasons={CLOSED: blocks}))

    def load(self, job: LoadJob) -> None:
        try:
            self._thread.post(self._work.load, job)
        except Closed as error:
            self._events.append(LoadDone(job.job_id, False, error=error.message, reason=error.kind))

    def lookup(self, lookup: Lookup) -> None:
        self._lookups.add(lookup.lookup_id)
        try:
            self._thread.post(self._work.lookup, lookup)
        except Closed as error:
            self._events.append(Answer(lookup.lookup_id, error=error.message, reason=error.kind))

    def release(self, lookup_id: int) -> None:
        self._lookups.discard(lookup_id)
        if not self._closed:
            self._thread.post(self._work.release, lookup_id)

    def fence(self) -> None:
        if not self._closed:
            self._thread.post(self._work.fence)

    def poll(self) -> list[PortEvent]:
        events: list[PortEvent] = []
        while self._events:
            event = self._events.popleft()
            if isinstance(event, Answer | Lapsed) and event.lookup_id not in self._lookups:
                continue  # released meanwhile
            events.append(event)
        return events

    def reset(self, scopes: tuple[Scope, ...], timeout_s: float) -> bool:
        if self._closed:
            return False
        future = self._thread.submit(self._work.reset(scopes, timeout_s))
        try:
            future.result(timeout_s + 1.0)
        except concurrent.futures.TimeoutError:
            future.cancel()
            log.warning("the reset was not confirmed within %g s", timeout_s)
            return False
        except PoolError as error:
            log.warning("the reset was not confirmed: %s", error)
            return False
        return True

    def close(self, drain_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._thread.submit(self._end(drain_s)).result(drain_s + END_S)
        except concurrent.futures.TimeoutError:
            log.warning("the port to the pool did not end within %g s", drain_s + END_S)
        finally:
            self._thread.stop()
            if self._owns_runtime:
                self._runtime.offload.close()

    async def _end(self, drain_s: float) -> None:
        await self._work.close(drain_s)
        await self._line.close()
        await asyncio.sleep(0)
