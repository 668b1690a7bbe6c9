"""The work behind a port, on an event loop: every job a task, every end of one an event, told exactly once.

    save ──► (a few at a time) ──► put ──► SaveDone       stored, existed, dropped and why
    load ──► get ──► LoadDone                             all in place, or not and why
    lookup ──► match_prefix ──► Answer, held until release; Lapsed where the hold is gone

A job that is ended early (deadline, fence, lost connection, close) is cancelled, and reports when the client has
drained. It does not know how jobs come here, nor who takes the events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable

from pykvpool.errors import Closed, DeadlineExceeded, PoolError
from pykvpool.host import jobs, lookups
from pykvpool.host.access import PoolLine, explained
from pykvpool.host.port import Answer, Found, Lapsed, LoadDone, LoadJob, Lookup, PortEvent, Removed, SaveJob
from pykvpool.model.keys import Scope

log = logging.getLogger("pykvpool.host")

#: Saves that run at a time; the others wait. Loads are waited for and all run.
SAVES_AT_A_TIME = 4
#: Reasons of what a fence, and the end of the port, kept from being stored.
FENCED = "fenced"
CLOSED = Closed.__name__

Emit = Callable[[PortEvent], None]


class PortWork:
    """Jobs and lookups of one port. All methods are for the loop's thread."""

    def __init__(self, line: PoolLine, mover: jobs.Mover, emit: Emit, lookup_line: PoolLine | None = None) -> None:
        """`lookup_line`: for lookups, where they have a session of their own."""
        self._line = line
        self._mover = mover
        self._lookup_line = lookup_line or line
        self._emit = emit
        self._watcher = self._lookup_line.new_watcher()
        self._saving = asyncio.Semaphore(SAVES_AT_A_TIME)
        #: Everything under way, by job id (0: a lookup). Dicts of tasks iterate in order of creation.
        self._tasks: dict[asyncio.Task[None], int] = {}
        #: Of these the saves, and of the saves those that were fenced.
        self._saves: dict[asyncio.Task[None], SaveJob] = {}
        self._fenced: dict[asyncio.Task[None], None] = {}
        #: Of each lookup that was neither released nor failed: what it holds, and while it asks, its task.
        self._holds: dict[int, lookups.Holds] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}

    # -- saves -----------------------------------------------------------------------------------------------------

    def save(self, job: SaveJob) -> None:
        tally, began = jobs.SaveTally(job), self._now()
        timeout_s = job.timeout_ms / 1_000

        async def run() -> None:
            async with asyncio.timeout(timeout_s), self._saving:
                await self._line.run(lambda client: self._mover.save(client, job, tally, timeout_s))

        def over(task: asyncio.Task[None]) -> None:
            del self._saves[task]
            reason = FENCED if task in self._fenced else CLOSED
            self._fenced.pop(task, None)
            error = outcome(task, f"save {job.job_id}")
            self._emit(tally.done(reason if error is None else error.kind, self._now() - began))

        self._saves[self._begin(run(), over, job.job_id)] = job

    def drop(self, job_id: int) -> None:
        """End one job early. Harmless for one that has ended."""
        for task in [task for task, known in self._tasks.items() if known == job_id]:
            task.cancel()

    def fence(self, scopes: Iterable[Scope] | None = None) -> list[asyncio.Task[None]]:
        """Cancel every save, or those that concern `scopes`; they report as they end."""
        only = None if scopes is None else set(scopes)
        fenced = [
            task
            for task, job in self._saves.items()
            if only is None or any(group.scope in only for group in job.groups)
        ]
        for task in fenced:
            self._fenced[task] = None
            task.cancel()
        return fenced

    async def fence_and_wait(self, scopes: Iterable[Scope] | None = None) -> None:
        """Returns when nothing of these saves can be stored any more."""
        fenced = self.fence(scopes)
        if fenced:
            await asyncio.wait(fenced)

    async def reset(
        self, scopes: tuple[Scope, ...], timeout_s: float, others: tuple[Awaitable[object], ...] = ()
    ) -> None:
        """Fence, wait for `others` (the same at other ports), then remove all objects of `scopes`, whoever reads them.
        Raises what kept it from being sure."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(self.fence_and_wait(), *others)
                if scopes:
                    # In the session of the saves: what it said of them is carried out before.
                    await self._line.run(lambda client: client.remove_scopes(scopes, force=True, timeout_s=timeout_s))
        except TimeoutError:
            raise DeadlineExceeded(f"the reset was not over within {timeout_s:g} s") from None

    # -- loads -----------------------------------------------------------------------------------------------------

    def load(self, job: LoadJob) -> None:
        began = self._now()
        timeout_s = job.timeout_ms / 1_000
        moved_bytes = 0

        async def run() -> None:
            nonlocal moved_bytes
            async with asyncio.timeout(timeout_s):
                moved_bytes = await self._line.run(lambda client: self._mover.load(client, job, timeout_s))

        def over(task: asyncio.Task[None]) -> None:
            error, seconds = outcome(task, f"load {job.job_id}"), self._now() - began
            if task.cancelled():
                error = Closed("the port was closed")
            if error is None:
                self._emit(LoadDone(job.job_id, True, moved_bytes, seconds=seconds))
            else:
                self._emit(LoadDone(job.job_id, False, 0, error.message, error.kind, seconds))

        self._begin(run(), over, job.job_id)

    # -- lookups ---------------------------------------------------------------------------------------------------

    def lookup(self, lookup: Lookup) -> None:
        ident, began, holds = lookup.lookup_id, self._now(), lookups.Holds()
        timeout_s = lookup.timeout_ms / 1_000
        found: tuple[Found, ...] = ()

        async def run() -> None:
            nonlocal found
            async with asyncio.timeout(timeout_s):
                found = await self._lookup_line.run(lambda client: lookups.ask(client, lookup, holds, timeout_s))

        def over(task: asyncio.Task[None]) -> None:
            error, seconds = outcome(task, f"lookup {ident}"), self._now() - began
            if self._holds.get(ident) is not holds:  # released: nobody wants an answer
                holds.release()
                return
            del self._asking[ident]
            if task.cancelled():
                error = Closed("the port was closed")
            if error is None:
                holds.keep(lambda: self._lapsed(ident))
                self._emit(Answer(ident, found, seconds=seconds))
            else:
                self.release(ident)
                self._emit(Answer(ident, (), error.message, error.kind, seconds))

        self._holds[ident] = holds
        self._asking[ident] = self._begin(run(), over)

    def release(self, lookup_id: int) -> None:
        """Give up its hold, or the lookup itself: then it is not answered. Harmless for one that is not known."""
        holds = self._holds.pop(lookup_id, None)
        if holds is not None:
            holds.release()
        task = self._asking.pop(lookup_id, None)
        if task is not None:
            task.cancel()

    def _lapsed(self, lookup_id: int) -> None:
        if lookup_id in self._holds:
            self.release(lookup_id)
            self._emit(Lapsed(lookup_id))

    # -- what leaves the pool --------------------------------------------------------------------------------------

    def watch(self, scopes: tuple[Scope, ...]) -> None:
        """Tell of blocks that leave these scopes, beside those named before."""
        self._lookup_line.watch(self._watcher, scopes, lambda scope, keys: self._emit(Removed(scope, keys)))

    # -- the end ---------------------------------------------------------------------------------------------------

    async def close(self, drain_s: float) -> None:
        """Let saves finish for at most `drain_s`, end everything else, release every hold."""
        if self._saves and drain_s > 0:
            await asyncio.wait(list(self._saves), timeout=drain_s)
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
            await asyncio.sleep(0)  # their callbacks
        for lookup_id in list(self._holds):
            self.release(lookup_id)
        self._lookup_line.unwatch(self._watcher)

    def _begin(
        self, work: Coroutine[object, object, None], over: Callable[[asyncio.Task[None]], None], job_id: int = 0
    ) -> asyncio.Task[None]:
        """`over` is called at the end, also of work that was cancelled before it began."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = job_id

        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[task]
            over(task)

        task.add_done_callback(ended)
        return task

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def outcome(task: asyncio.Task[None], what: str) -> PoolError | None:
    """What a task that is done failed with; None also where it was cancelled."""
    failure = None if task.cancelled() else task.exception()
    if failure is None:
        return None
    error = explained(failure)
    log.debug("%s: %s", what, error)
    return error
