"""A port to no pool: it takes jobs, and ends them as a test says."""

from __future__ import annotations

from pykvpool.host.port import LoadDone, LoadJob, Lookup, PortEvent, SaveDone, SaveJob
from pykvpool.model.keys import Scope


class HandPort:
    """Every job waits until the test ends it; `broken` makes calls raise it."""

    placement = "a test"
    connected = True

    def __init__(self) -> None:
        self.loads: dict[int, LoadJob] = {}
        self.saves: dict[int, SaveJob] = {}
        self.lookups: dict[int, Lookup] = {}
        self.fences = 0
        self.watched: set[Scope] = set()
        self.closed: float | None = None
        self.broken: Exception | None = None
        self._events: list[PortEvent] = []

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def save(self, job: SaveJob) -> None:
        self._check()
        self.saves[job.job_id] = job

    def load(self, job: LoadJob) -> None:
        self._check()
        self.loads[job.job_id] = job

    def lookup(self, lookup: Lookup) -> None:
        self._check()
        self.lookups[lookup.lookup_id] = lookup

    def release(self, lookup_id: int) -> None:
        self.lookups.pop(lookup_id, None)

    def watch(self, scopes: tuple[Scope, ...]) -> None:
        self._check()
        self.watched.update(scopes)

    def fence(self) -> None:
        self._check()
        self.fences += 1

    def poll(self) -> list[PortEvent]:
        self._check()
        events, self._events = self._events, []
        return events

    def reset(self, scopes: tuple[Scope, ...], timeout_s: float) -> bool:
        self._check()
        return True

    def close(self, drain_s: float) -> None:
        self.closed = drain_s

    def end(self, *events: PortEvent) -> None:
        """The next poll brings these."""
        for event in events:
            if isinstance(event, LoadDone):
                self.loads.pop(event.job_id, None)
            elif isinstance(event, SaveDone):
                self.saves.pop(event.job_id, None)
            self._events.append(event)
