"""Cache events: what the pool holds because of this engine, for routers that listen to it.

A block is announced when a save of it is complete on every rank, and taken back when the master says that it left the
pool. Only what was announced is taken back, once, however many ranks' parts are removed. The events themselves are
vLLM's; who makes them is handed in, so that nothing here needs vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Protocol

from pykvpool.host.port import Removed
from pykvpool.model.keys import Scope
from pykvpool_connector.vllm.cache_groups import GroupRule
from pykvpool_connector.vllm.identity import Identity
from pykvpool_connector.vllm.scheduler.engine import EngineRequest
from pykvpool_connector.vllm.scheduler.pins import PinnedJob

#: Announced blocks remembered (some 200 bytes each); the removal of an older one is not announced any more.
MAX_ANNOUNCED = 1 << 18
#: Events kept for a listener that does not come for them: engines collect after every step.
MAX_EVENTS = 1 << 14


class EventMaker(Protocol):
    """Makes the engine's own events."""

    def stored(self, request: EngineRequest, rule: GroupRule, first: int, last: int) -> object:
        """Blocks `first` to `last` (exclusive) of a request are in the pool."""
        ...

    def removed(self, rule: GroupRule, key: bytes) -> object: ...


class Announcer:
    """Collects events between two calls of `take`. Without a maker it does nothing."""

    def __init__(
        self, identity: Identity, maker: EventMaker | None, watch: Callable[[tuple[Scope, ...]], None]
    ) -> None:
        """`watch`: have the pool tell of blocks that leave these scopes (`removed`)."""
        self._identity = identity
        self._maker = maker
        self._watch = watch
        self._rules = {rule.group: rule for rule in identity.groups}
        #: Announced blocks, oldest first: (adapter, group, key).
        self._announced: dict[tuple[str, int, bytes], None] = {}
        #: Which adapter's blocks lie in a scope.
        self._adapters: dict[Scope, str] = {}
        self._events: list[object] = []
        if maker is not None:  # before anything is saved: what goes at once is told too
            for rule in identity.groups:
                self._know("", rule.group)

    def _know(self, adapter: str, group: int) -> None:
        """Blocks of this adapter are announced from now on."""
        scopes = self._identity.scopes(adapter, group)
        if any(scope not in self._adapters for scope in scopes):
            self._adapters.update(dict.fromkeys(scopes, adapter))
            self._watch(scopes)

    def describe(self, request: EngineRequest, rule: GroupRule, indexes: Sequence[int]) -> list[object]:
        """Events for blocks that are about to be saved, to be kept until they are: the request may be gone then."""
        maker = self._maker
        if maker is None:
            return []
        runs = groupby(enumerate(indexes), key=lambda each: each[1] - each[0])
        spans = [[index for _, index in run] for _, run in runs]
        return [maker.stored(request, rule, span[0], span[-1] + 1) for span in spans]

    def saved(self, job: PinnedJob) -> None:
        """A save job has come to its end on all ranks."""
        if self._maker is None or not job.report.complete:
            return
        self._add(job.notices)
        for name in job.names:
            self._announced.pop(name, None)
            self._announced[name] = None
        for adapter, group in {name[:2] for name in job.names}:
            self._know(adapter, group)
        while len(self._announced) > MAX_ANNOUNCED:
            del self._announced[next(iter(self._announced))]

    def removed(self, event: Removed) -> None:
        """Blocks left the pool. Without keys: any may have, so all are taken back; what is saved again is announced
        again."""
        adapter = self._adapters.get(event.scope)
        if self._maker is None or adapter is None:
            return
        rule = self._rules[event.scope.group]
        if event.keys:
            gone = [key for key in event.keys if (adapter, rule.group, key) in self._announced]
        else:
            gone = [key for name, group, key in self._announced if (name, group) == (adapter, rule.group)]
        for key in gone:
            del self._announced[adapter, rule.group, key]
        self._add([self._maker.removed(rule, key) for key in gone])

    def forget(self) -> None:
        """Everything was removed at once (a reset): take back all that was announced."""
        if self._maker is not None:
            self._add([self._maker.removed(self._rules[group], key) for _, group, key in self._announced])
        self._announced.clear()

    def take(self) -> list[object]:
        events, self._events = self._events, []
        return events

    def _add(self, events: Sequence[object]) -> None:
        self._events += events
        if len(self._events) > MAX_EVENTS:
            del self._events[: len(self._events) - MAX_EVENTS]
