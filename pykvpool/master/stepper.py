"""Steps the core: one event at a time, facts before replies, one timer.

It owns the core; nobody else calls it. It knows clocks and timers and nothing of connections: whoever delivers replies
is a function that it is given. Long work comes as ticks, one a turn of the loop, so that requests get in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from pykvpool.core.effects import Effects
from pykvpool.master.decider import Decider
from pykvpool.model.events import Event, Tick
from pykvpool.model.facts import Fact
from pykvpool.runtime import Clock

log = logging.getLogger("pykvpool.master")

#: Pause after a step that failed on time alone: the same tick would fail again at once, and spin.
FAILED_TICK_PAUSE_MS = 1_000
#: The longest a timer is set for: clocks that run through suspend and the loop's may part in between.
MAX_TIMER_MS = 60_000

#: Gets the facts of one step, in order, before any reply of it leaves. Must not raise or block.
FactSubscriber = Callable[[Sequence[Fact]], None]


class Stepper:
    """`deliver` gets each step's effects after the subscribers got its facts."""

    def __init__(self, core: Decider, clock: Clock, deliver: Callable[[Effects], None]) -> None:
        self._core = core
        self._clock = clock
        self._deliver = deliver
        self._subscribers: list[FactSubscriber] = []
        self._timer: asyncio.TimerHandle | None = None
        #: When `_timer` fires, on our clock.
        self._timer_at_ms = 0
        #: No tick before this, on our clock: the last one failed.
        self._paused_until_ms = 0
        self._stopped = False

    def subscribe(self, subscriber: FactSubscriber) -> Callable[[], None]:
        """Returns a function that ends the subscription."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def start(self) -> None:
        """Arm the timer for what the core has pending from before (a replayed journal)."""
        self._arm()

    def stop(self) -> None:
        """No more steps."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def submit(self, event: Event) -> bool:
        """One step. False: the core failed, which is a bug; it is logged, and whoever asked has to be told."""
        if self._stopped:
            return True
        try:
            effects = self._core.step(event, self._clock.now_ms())
        except Exception:
            # The one place that must survive a bug: the pool goes on for everybody else.
            log.exception("the core failed on %s", event)
            if isinstance(event, Tick):
                self._paused_until_ms = self._clock.now_ms() + FAILED_TICK_PAUSE_MS
            self._arm()
            return False
        if effects.facts:
            for subscriber in self._subscribers:
                self._publish(subscriber, effects.facts)
        self._deliver(effects)
        self._arm()
        return True

    def _publish(self, subscriber: FactSubscriber, facts: Sequence[Fact]) -> None:
        try:
            subscriber(facts)
        except Exception:
            log.exception("a subscriber failed on %d facts", len(facts))

    def _arm(self) -> None:
        """See that a tick comes when the core wants it. A timer that fires too early just finds nothing to do."""
        deadline_ms = self._core.next_deadline()
        if deadline_ms is None or self._stopped:
            return
        now_ms = self._clock.now_ms()
        wait_ms = min(max(deadline_ms, self._paused_until_ms, now_ms) - now_ms, MAX_TIMER_MS)
        if self._timer is not None:
            if self._timer_at_ms <= now_ms + wait_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = now_ms + wait_ms
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        deadline_ms = self._core.next_deadline()
        if deadline_ms is not None and deadline_ms <= self._clock.now_ms():
            self.submit(Tick())
        else:
            self._arm()
