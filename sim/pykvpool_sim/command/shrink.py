"""From a failing run to a smaller one: whatever it does not need is left out, as long as it fails alike.

A run is made of strikes, hosts, turns of clients, and the choices of who runs next. Each of them is cut by delta
debugging (Zeller and Hildebrandt, 2002; complements only): halves are left out, then quarters, down to single ones.
Choices are not left out but made plain, which is what asyncio does: first in, first out. Whatever remains is needed, or
the time was up.

Streams are named, so leaving out one thing leaves the draws of all others as they were; but what follows from it
changes, and a smaller run may fail in another way. It counts if it breaks the same promise, and not after more turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pykvpool_sim.cluster import Options, Report, run_seed

T = TypeVar("T")

#: Real time spent on one failure, unless asked otherwise: a hundred runs or two.
LIMIT_S = 60.0
#: Runs spent on it at most, however fast the machine: what has not become smaller by then hardly will.
MAX_RUNS = 500
#: Choices other than the plain one that a tape may have to be worth writing down; with more, the seed's own chooser is
#: the shorter story.
MAX_CHOICES = 200


@dataclass(frozen=True, slots=True)
class Shrunken:
    """The smallest run that was found."""

    options: Options
    report: Report
    runs: int


def shrink(
    report: Report,
    options: Options,
    *,
    limit_s: float = LIMIT_S,
    max_runs: int = MAX_RUNS,
    run: Callable[[int, Options], Report] = run_seed,
    now_s: Callable[[], float] = time.monotonic,
) -> Shrunken:
    """A run that breaks the promise that `report`, which `options` gave, breaks first. Takes `limit_s` and one run more
    at most, and `max_runs`."""
    return _Shrinker(report, options, run, now_s() + limit_s, now_s, max_runs).shrink()


class _Shrinker:
    def __init__(
        self,
        report: Report,
        options: Options,
        run: Callable[[int, Options], Report],
        deadline_s: float,
        now_s: Callable[[], float],
        max_runs: int,
    ) -> None:
        self._seed = report.seed
        self._broken = report.broken
        self._run = run
        self._deadline_s = deadline_s
        self._now_s = now_s
        self._max_runs = max_runs
        #: The smallest so far.
        self._options = options
        self._report = report
        self._runs = 0

    def shrink(self) -> Shrunken:
        # In the plain order everything else is easier to leave out, so that is tried first.
        self._fails(replace(self._options, tape=b""))
        before = None
        while before != self._options and not self._is_late():
            before = self._options
            self._cut_strikes()
            self._cut_hosts()
            self._cut_turns()
            if self._options.tape is None:
                self._fails(replace(self._options, tape=b""))
        if self._options.tape != b"":
            self._cut_tape()
        return Shrunken(self._options, self._report, self._runs)

    # -- what is cut ---------------------------------------------------------------------------------------------

    def _cut_strikes(self) -> None:
        options = self._options
        kept = range(self._report.planned) if options.keep is None else options.keep
        self._fewer(list(kept), lambda keep: replace(self._options, keep=tuple(keep)))

    def _cut_hosts(self) -> None:
        self._fewer(list(self._report.hosts), lambda hosts: replace(self._options, hosts=tuple(hosts)))

    def _cut_turns(self) -> None:
        """Those that were not taken before it broke are left out from the beginning."""
        self._fewer([*self._report.turns], lambda turns: replace(self._options, turns=frozenset(turns)))

    def _cut_tape(self) -> None:
        """The choices of the run as it is, made plain from the end on, then here and there."""
        recorded = self._run(self._seed, replace(self._options, record=True))
        self._runs += 1
        tape = recorded.tape if self._options.tape is None else self._options.tape
        odd = [position for position, choice in enumerate(tape) if choice]

        def only(positions: Sequence[int]) -> Options:
            kept = set(positions)
            plain = bytes(choice if position in kept else 0 for position, choice in enumerate(tape))
            return replace(self._options, tape=plain.rstrip(b"\0"))

        before = self._options, self._report
        # From here on a tape is what is tried; it stays only if it is short.
        odd = self._shortest_prefix(odd, only)
        odd = self._fewer(odd, only)
        if before[0].tape is None and len(odd) > MAX_CHOICES:
            self._options, self._report = before

    # -- how -----------------------------------------------------------------------------------------------------

    def _shortest_prefix(self, items: list[int], made: Callable[[Sequence[int]], Options]) -> list[int]:
        """By bisection: fails with it, and not with half of what is left."""
        enough, few = len(items), 0
        while enough - few > 1 and not self._is_late():
            middle = (enough + few) // 2
            if self._fails(made(items[:middle])):
                enough = middle
            else:
                few = middle
        return items[:enough]

    def _fewer(self, items: list[T], made: Callable[[Sequence[T]], Options]) -> list[T]:
        """The items that a failure needs; each run that fails alike becomes the smallest so far."""
        size = len(items)
        while items and not self._is_late():
            position, dropped = 0, False
            while position < len(items) and not self._is_late():
                fewer = items[:position] + items[position + size :]
                if self._fails(made(fewer)):
                    items, dropped = fewer, True
                else:
                    position += size
            if size == 1 and not dropped:
                break
            size = max(1, size // 2)
        return items

    def _fails(self, options: Options) -> bool:
        """And if so, it is the smallest so far."""
        if options == self._options:
            return True
        if self._is_late():
            return False
        report = self._run(self._seed, options)
        self._runs += 1
        if report.broken != self._broken or len(report.turns) > len(self._report.turns):
            return False
        self._options, self._report = options, report
        return True

    def _is_late(self) -> bool:
        return self._runs >= self._max_runs or self._now_s() >= self._deadline_s
