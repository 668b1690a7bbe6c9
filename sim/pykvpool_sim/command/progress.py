"""How far a campaign is: a line that changes on a terminal, a line now and then in a file."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.status import Status

from pykvpool_sim.cluster.troubles import KINDS
from pykvpool_sim.command.campaign import Summary

#: Seconds between two lines in a file.
_EVERY_S = 30.0


class ProgressLine:
    """A context manager. `total`: seeds; `before`: how many of them were done before."""

    def __init__(self, console: Console, total: int, before: int = 0) -> None:
        self._console = console
        self._total = total
        self._before = before
        self._begun_s = self._said_s = time.monotonic()
        self._status: Status | None = Status("", console=console) if console.is_terminal and total > 1 else None

    def __enter__(self) -> ProgressLine:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, summary: Summary) -> bool:
        """After each run. True now and then, as often as a file gets a line."""
        if self._status is not None:
            self._status.update(self.text(summary))
        if time.monotonic() - self._said_s < _EVERY_S:
            return False
        self._said_s = time.monotonic()
        if self._status is None:
            self.say(self.text(summary))
        return True

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def text(self, summary: Summary) -> str:
        """The time left is what the seeds so far took each, for those to come: comparisons, which come first, are
        counted in, so it is too long rather than too short."""
        passed_s = time.monotonic() - self._begun_s
        failed = len(summary.failures) + len(summary.earlier_failures)
        words = [f"{summary.seeds:,} of {self._total:,} seeds", f"{failed:,} failed"]
        if summary.compared:
            words.append(f"{sum(summary.took_effect[kind] for kind in KINDS):,} effects")
        done = summary.seeds - self._before
        if done:
            left_s = passed_s / done * (self._total - summary.seeds)
            words.append(f"{passed_s / 60:.0f} min, about {left_s / 60:.0f} to go")
        return ", ".join(words)
