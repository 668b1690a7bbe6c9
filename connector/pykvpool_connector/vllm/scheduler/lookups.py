"""Lookups under way, and leases on what they found.

A lookup is asked once; however often vLLM comes back for the answer, only memory is looked at. What it found is held in
the pool until it is released here, exactly once, on every way out: loaded, not needed, aborted, never scheduled. A
hold that lapsed (the master restarted, the wait was longer than leases live) is asked for again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from pykvpool.host.port import Answer, Found, Lapsed, Lookup, Question
from pykvpool_connector.vllm.scheduler.guarded import GuardedPort
from pykvpool_connector.vllm.tally import Tally

#: A port answers or gives up by its own deadline; this much later it is taken to have forgotten.
GRACE_MS = 500
#: Holds that lapse this often while one request waits are no use: it computes instead.
MAX_ASKS = 4


class State(enum.Enum):
    ASKED = "no answer yet"
    HELD = "something was found, and is held"
    OVER = "nothing found, an error, too late, or given up: nothing is held"


@dataclass(slots=True)
class Ask:
    """One request's lookup."""

    questions: tuple[Question, ...]
    lookup_id: int
    #: Milliseconds of the clock, after which no answer is waited for.
    deadline: int
    state: State = State.ASKED
    #: Answers to the questions; empty where there were none.
    found: tuple[Found, ...] = ()
    asks: int = 1
    #: A load relies on it: a lapse is for the load to find out.
    lent: bool = field(default=False)


class Lookups:
    """All lookups of one engine."""

    def __init__(self, port: GuardedPort, now: Callable[[], int], timeout_ms: int, tally: Tally) -> None:
        self._port = port
        self._now = now
        self._timeout_ms = timeout_ms
        self._tally = tally
        self._numbers = count(1)
        #: Asks in state ASKED or HELD, by lookup.
        self._open: dict[int, Ask] = {}

    @property
    def open(self) -> int:
        """Lookups that are under way or hold something."""
        return len(self._open)

    def ask(self, questions: tuple[Question, ...]) -> Ask:
        ask = Ask(questions, 0, 0)
        self._send(ask)
        return ask

    def state(self, ask: Ask) -> State:
        """Where a lookup stands; one whose time is over is given up."""
        if ask.state is State.ASKED and self._now() >= ask.deadline:
            self._tally.count("lookups", label="timeout")
            self.give_up(ask)
        return ask.state

    def give_up(self, ask: Ask) -> None:
        """Release what it holds, or the question itself. Harmless when repeated; what was found stays readable."""
        if self._open.pop(ask.lookup_id, None) is not None:
            self._port.release(ask.lookup_id)
        ask.state = State.OVER

    def answered(self, answer: Answer) -> None:
        ask = self._open.get(answer.lookup_id)
        if ask is None:
            if not answer.error:  # it crossed our release: nobody else will let go of it
                self._port.release(answer.lookup_id)
            return
        self._tally.observe("lookup_seconds", answer.seconds)
        if answer.error:
            self._tally.count("lookups", label=answer.reason or "unknown")
            del self._open[ask.lookup_id]
            ask.state = State.OVER
            return
        ask.found = answer.found
        if any(found.count or any(found.presence) for found in answer.found):
            self._tally.count("lookups", label="hit")
            ask.state = State.HELD
        else:
            self._tally.count("lookups", label="miss")
            self.give_up(ask)

    def lapsed(self, event: Lapsed) -> None:
        """The hold is gone: ask again, unless a load is on its way (which fails by itself where blocks are gone)."""
        ask = self._open.get(event.lookup_id)
        if ask is None or ask.lent:
            return
        del self._open[event.lookup_id]
        self.again(ask)

    def again(self, ask: Ask) -> None:
        """Forget an answer and ask anew."""
        if self._open.pop(ask.lookup_id, None) is not None:
            self._port.release(ask.lookup_id)
        ask.found = ()
        if ask.asks >= MAX_ASKS:
            ask.state = State.OVER
            return
        ask.asks += 1
        self._send(ask)

    def close(self) -> None:
        for ask in list(self._open.values()):
            self.give_up(ask)

    def _send(self, ask: Ask) -> None:
        ask.lookup_id = next(self._numbers)
        ask.deadline = self._now() + self._timeout_ms + GRACE_MS
        ask.state = State.ASKED
        self._open[ask.lookup_id] = ask
        self._port.lookup(Lookup(ask.lookup_id, ask.questions, self._timeout_ms))
