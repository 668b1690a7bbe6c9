"""What every port is that hands its work to a thread: queues between the engine's thread and a loop on another.

The engine's thread only posts and polls; whether the thread does the work itself or says it to a node, it does not
know.
"""

from __future__ import annotations

import collections
import concurrent.futures
import logging
from collections.abc import Callable
from typing import Protocol

from pykvpool.client.sync import LoopThread
from pykvpool.errors import Closed, PoolError
from pykvpool.host.port import Answer, Lapsed, LoadDone, LoadJob, Lookup, PortEvent, SaveDone, SaveJob
from pykvpool.host.work import CLOSED, Emit
from pykvpool.model.keys import Scope
from pykvpool.runtime import Runtime, real_runtime

log = logging.getLogger("pykvpool.host")

#: How long the end of everything may take beyond what the caller gave to the saves (s): transfers drain, and the master
#: is told.
END_S = 15.0
#: How much longer than its own time a reset is waited for (s).
RESET_GRACE_S = 1.0


class Worker(Protocol):
    """Carries out what a port is asked, on the thread's loop. It tells every end to the `Emit` it was made with."""

    @property
    def connected(self) -> bool:
        """Any thread may ask."""
        ...

    def start(self) -> None: ...

    def save(self, job: SaveJob) -> None: ...

    def load(self, job: LoadJob) -> None: ...

    def lookup(self, lookup: Lookup) -> None: ...

    def release(self, lookup_id: int) -> None: ...

    def watch(self, scopes: tuple[Scope, ...]) -> None: ...

    def fence(self) -> object: ...

    async def reset(self, scopes: tuple[Scope, ...], timeout_s: float) -> None:
        """Raises what kept it from being sure."""
        ...

    async def close(self, drain_s: float) -> None: ...


class ThreadPort:
    """See `pykvpool.host.port.PoolPort`; `placement` is a subclass's."""

    def __init__(self, name: str, make: Callable[[Runtime, Emit], Worker]) -> None:
        self._runtime = real_runtime()
        #: Filled by the thread, emptied by the engine's.
        self._events: collections.deque[PortEvent] = collections.deque()
        #: Lookups that were not released: only of these anything is told. The engine's thread alone uses it.
        self._lookups: set[int] = set()
        self._closed = False
        self._worker = make(self._runtime, self._events.append)
        self._thread = LoopThread(f"pykvpool {name}")
        self._thread.post(self._worker.start)

    @property
    def connected(self) -> bool:
        return self._worker.connected

    def save(self, job: SaveJob) -> None:
        if self._closed:
            blocks = sum(len(group.keys) for group in job.groups)
            self._events.append(SaveDone(job.job_id, dropped=blocks, reasons={CLOSED: blocks} if blocks else {}))
        else:
            self._thread.post(self._worker.save, job)

    def load(self, job: LoadJob) -> None:
        if self._closed:
            self._events.append(LoadDone(job.job_id, False, error="the port is closed", reason=CLOSED))
        else:
            self._thread.post(self._worker.load, job)

    def lookup(self, lookup: Lookup) -> None:
        self._lookups.add(lookup.lookup_id)
        if self._closed:
            self._events.append(Answer(lookup.lookup_id, error="the port is closed", reason=CLOSED))
        else:
            self._thread.post(self._worker.lookup, lookup)

    def release(self, lookup_id: int) -> None:
        self._lookups.discard(lookup_id)
        if not self._closed:
            self._thread.post(self._worker.release, lookup_id)

    def watch(self, scopes: tuple[Scope, ...]) -> None:
        if not self._closed:
            self._thread.post(self._worker.watch, scopes)

    def fence(self) -> None:
        if not self._closed:
            self._thread.post(self._worker.fence)

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
        future = self._thread.submit(self._worker.reset(scopes, timeout_s))
        try:
            future.result(timeout_s + RESET_GRACE_S)
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
            self._thread.submit(self._worker.close(drain_s)).result(drain_s + END_S)
        except concurrent.futures.TimeoutError:
            log.warning("the port to the pool did not end within %g s", drain_s + END_S)
        except Closed:
            pass  # the thread is gone already, and everything with it
        finally:
            self._thread.stop()
            self._runtime.offload.close()
