"""Many seeds, and the sum of what they exercised.

Each seed is run; then, where that is asked for, run again by another process, for the digests; and run without one of
its kinds of faults, for each kind that has not yet shown often enough that it *takes effect*: that clients are told
something else where it is left out (`pykvpool_sim.cluster.told`). A strike that found nothing to befall is not
compared: leaving it out changes nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pykvpool_sim.cluster import Options, Report
from pykvpool_sim.cluster.told import Comparison
from pykvpool_sim.command.workers import Ran, Run, run_here, run_in_processes

#: Seeds in which a kind of fault has to take effect until it is believed.
ENOUGH = 100


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is to be found out about each seed."""

    options: Options = field(default_factory=Options)
    #: Run it again, in another process: equal digests?
    twice: bool = False
    #: Run it again without each of its kinds of faults: another history?
    compare: bool = False
    #: Kinds that took effect in so many seeds are not compared any more.
    enough: int = ENOUGH


@dataclass(slots=True)
class Owed:
    """What is still to be found out about a seed that was run."""

    #: Kinds of faults to leave out.
    without: list[str] = field(default_factory=list)
    #: To run it again, for the digests.
    again: bool = False


@dataclass(slots=True)
class Summary:
    """The sum over all seeds."""

    seeds: int = 0
    #: Which they are.
    done: set[int] = field(default_factory=set)
    #: By seed: what is still to be found out about it. A campaign that is taken up again begins with these.
    owed: dict[int, Owed] = field(default_factory=dict)
    #: What broke a promise before the campaign was taken up again: as in its record.
    earlier_failures: list[dict[str, object]] = field(default_factory=list)
    #: What broke a promise, and how it was run.
    failures: list[tuple[Report, Options]] = field(default_factory=list)
    repeated: int = 0
    unrepeatable: list[int] = field(default_factory=list)
    #: By kind of fault: strikes; those that found something to befall; seeds that had such.
    struck: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    seeds_with: Counter[str] = field(default_factory=Counter)
    #: By kind of fault: seeds compared without it, and how many of them were different then.
    compared: Counter[str] = field(default_factory=Counter)
    took_effect: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    callbacks: int = 0
    virtual_s: float = 0.0
    #: Runs of any sort.
    runs: int = 0
    #: Of the seed that was run last.
    last: Report = field(default_factory=lambda: Report(0))

    def add(self, report: Report) -> None:
        """The first run of a seed."""
        self.seeds += 1
        self.done.add(report.seed)
        self.last = report
        self.struck.update(report.struck)
        self.fired.update(report.fired)
        self.seeds_with.update(report.fired.keys())
        self.counts.update(report.counts)
        self.calls.update(report.calls)
        self.callbacks += report.callbacks
        self.virtual_s += report.virtual_s


class Campaign:
    """A `Source` of runs; `summary` grows with what comes of them, from what it was before. Seeds that are in it are
    not run again, but for those about which something is still to be found out: that takes their first run."""

    def __init__(self, seeds: Iterable[int], wishes: Wishes, summary: Summary | None = None) -> None:
        self.summary = summary or Summary()
        self._wishes = wishes
        self._seeds = iter([seed for seed in seeds if seed not in self.summary.done])
        #: Seeds to run for what they owe: their figures are in the summary. And those being run for it.
        self._recall: deque[int] = deque(self.summary.owed)
        self._recalled: set[int] = set()
        #: Comparisons to make: the seed's run, and the kind that is left out.
        self._without: deque[tuple[Report, str]] = deque()
        #: First runs to repeat, by the worker that must not do it.
        self._again: deque[tuple[int, Report]] = deque()
        #: First runs that are being repeated.
        self._repeats: dict[int, Report] = {}

    def run(self, processes: int) -> Iterator[None]:
        """Yields after each run. One process: this one. To run seeds twice takes two."""
        if processes <= 1 and not self._wishes.twice:
            return run_here(self)
        return run_in_processes(self, max(2, processes))

    # -- Source --------------------------------------------------------------------------------------------------

    def next_run(self, worker: int) -> Run | None:
        options = self._wishes.options
        again = next((entry for entry in self._again if entry[0] != worker), None)
        if again is not None:
            self._again.remove(again)
            report = again[1]
            self._repeats[report.seed] = report
            return Run(report.seed, options)
        if self._recall:
            self._recalled.add(self._recall[0])
            return Run(self._recall.popleft(), options)
        while self._without:
            report, kind = self._without.popleft()
            if self.summary.took_effect[kind] < self._wishes.enough:
                comparison = Comparison(report.told, report.stopped.get(kind, frozenset()))
                return Run(report.seed, replace(options, without=kind), comparison)
            self._compared(report.seed, kind)
        seed = next(self._seeds, None)
        return None if seed is None else Run(seed, options)

    def ran(self, worker: int, run: Run, result: Ran) -> None:
        summary, report = self.summary, result.report
        summary.runs += 1
        if run.comparison is not None:
            kind = run.options.without
            summary.compared[kind] += 1
            summary.took_effect[kind] += result.differs
            self._compared(run.seed, kind)
            if report.failed:
                summary.failures.append((report, run.options))
        elif run.seed in self._recalled:
            self._recalled.remove(run.seed)
            self._look_into(worker, report)
        elif run.seed in self._repeats:
            first = self._repeats.pop(run.seed)
            summary.repeated += 1
            summary.owed[run.seed].again = False
            self._forget_settled(run.seed)
            if (first.digest, first.history_digest) != (report.digest, report.history_digest):
                summary.unrepeatable.append(run.seed)
        else:
            summary.add(report)
            if report.failed:
                summary.failures.append((report, run.options))
            kinds = sorted(report.fired) if self._wishes.compare and not report.failed else []
            summary.owed[run.seed] = Owed(kinds, self._wishes.twice)
            self._look_into(worker, report)

    def _look_into(self, worker: int, report: Report) -> None:
        """Queue what a seed owes; `report` is of its first run."""
        owed = self.summary.owed[report.seed]
        if owed.without and report.failed:
            # It did not when it was run before: no history to compare with.
            self.summary.failures.append((report, self._wishes.options))
            owed.without.clear()
        if owed.again:
            self._again.append((worker, report))
        self._without.extend((report, kind) for kind in owed.without)
        self._forget_settled(report.seed)

    def _compared(self, seed: int, kind: str) -> None:
        self.summary.owed[seed].without.remove(kind)
        self._forget_settled(seed)

    def _forget_settled(self, seed: int) -> None:
        if self.summary.owed[seed] == Owed():
            del self.summary.owed[seed]
