"""Times a master's steps from outside: the core may not know a clock, and its shell need not know metrics."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import Histogram

from pykvpool.core.effects import Effects
from pykvpool.core.master import MasterCore
from pykvpool.metrics import Metrics
from pykvpool.metrics.table import MASTER_STEP_SECONDS
from pykvpool.model.events import Event, Request


class TimedCore:
    """A `MasterCore` for a `MasterServer` that records how long each step held the loop.

    Args:
        core: decides.
        metrics: get ``pykvpool_master_step_seconds`` by the name of the command, or of the event without one.
        seconds: a clock that only runs forward.
    """

    def __init__(self, core: MasterCore, metrics: Metrics, seconds: Callable[[], float] = time.perf_counter) -> None:
        self._core = core
        self._metrics = metrics
        self._seconds = seconds
        #: One per kind of command or event, bound at its first step.
        self._histograms: dict[type, Histogram] = {}

    @property
    def epoch(self) -> int:
        return self._core.epoch

    def step(self, event: Event, now: int) -> Effects:
        """The core's own step. One that raises is not recorded: it is a bug, and logged as such."""
        began = self._seconds()
        effects = self._core.step(event, now)
        self._histogram(type(event.command if isinstance(event, Request) else event)).observe(self._seconds() - began)
        return effects

    def next_deadline(self) -> int | None:
        return self._core.next_deadline()

    def _histogram(self, kind: type) -> Histogram:
        histogram = self._histograms.get(kind)
        if histogram is None:
            histogram = self._histograms[kind] = self._metrics.histogram(MASTER_STEP_SECONDS, kind.__name__)
        return histogram
