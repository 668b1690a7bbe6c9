"""A pool, as the scheduler's side sees it through its port: it answers when chance says, late, with errors or never,
and what it holds lapses. Whoever releases what it does not have is told at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pykvpool.host.port import Answer, Found, Lapsed, Lookup, Removed
from pykvpool.model.keys import Scope

if TYPE_CHECKING:
    from tests.vllm.engine.world import World


class FakePort:
    """The scheduler's way to the pool."""

    placement = "a test"
    connected = True

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: dict[int, Lookup] = {}
        #: Those of them that will never be answered.
        self._mute: set[int] = set()
        #: Lookups that hold something, and those whose hold has lapsed without being released.
        self.held: set[int] = set()
        self.lapsed: set[int] = set()
        self._events: list[Any] = []
        self._watched: set[Scope] = set()
        self.closed = False
        self.asked = 0

    @property
    def open(self) -> int:
        """Questions and holds of which nobody has let go."""
        return len(self._asked) + len(self.held)

    def lookup(self, lookup: Lookup) -> None:
        self.asked += 1
        assert lookup.lookup_id not in self._asked
        self._asked[lookup.lookup_id] = lookup
        if self._world.rng.random() < self._world.chances.no_answer:
            self._mute.add(lookup.lookup_id)

    def release(self, lookup_id: int) -> None:
        unread = self._unread(lookup_id)
        known = unread or lookup_id in self._asked or lookup_id in self.held or lookup_id in self.lapsed
        assert known, f"the lookup {lookup_id} is released twice, or was never asked"
        self._asked.pop(lookup_id, None)
        self.held.discard(lookup_id)
        self.lapsed.discard(lookup_id)
        self._events = [event for event in self._events if getattr(event, "lookup_id", None) != lookup_id]

    def poll(self) -> list[Any]:
        events, self._events = self._events, []
        return events

    def save(self, job: Any) -> None:
        raise AssertionError("the scheduler's side moves no blocks")

    load = save

    def reset(self, scopes: tuple[Scope, ...], timeout_s: float) -> bool:
        if self._world.rng.random() < self._world.chances.no_answer:
            return False
        for scope, key in list(self._world.stored):
            if scope in scopes:
                del self._world.stored[scope, key]
        return True

    def close(self, drain_s: float) -> None:
        self.closed = True

    def tick(self) -> None:
        rng, chances = self._world.rng, self._world.chances
        for lookup_id, lookup in list(self._asked.items()):
            if lookup_id in self._mute or rng.random() >= chances.answer:
                continue
            del self._asked[lookup_id]
            if rng.random() < chances.lookup_error:
                self._events.append(Answer(lookup_id, error="no pool", reason="Unreachable"))
                continue
            self.held.add(lookup_id)
            self._events.append(Answer(lookup_id, tuple(self._find(each) for each in lookup.questions)))
        for lookup_id in sorted(self.held):
            if rng.random() < chances.lapse and not self._unread(lookup_id):
                self.held.discard(lookup_id)
                self.lapsed.add(lookup_id)
                self._events.append(Lapsed(lookup_id))

    def watch(self, scopes: tuple[Scope, ...]) -> None:
        self._watched.update(scopes)

    def forgotten(self, scope: Scope, key: bytes) -> None:
        if scope in self._watched:
            self._events.append(Removed(scope, (key,)))

    def _unread(self, lookup_id: int) -> bool:
        return any(isinstance(event, Answer) and event.lookup_id == lookup_id for event in self._events)

    def _find(self, question: Any) -> Found:
        there = [all((scope, key) in self._world.stored for scope in question.scopes) for key in question.keys]
        count = next((at for at, here in enumerate(there) if not here), len(there))
        return Found(count, bytes(there) if question.presence else b"")
