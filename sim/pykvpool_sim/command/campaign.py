"""Many seeds over several processes, and the sum of what they exercised.

A worker process runs a few dozen seeds and is replaced: crashed hosts leak what they held, on purpose. A fault counts
as having *taken effect* in a seed only if the same seed without faults of that kind gives another history; each seed
can be compared in that way for one of its kinds.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pykvpool_sim.cluster import Options, Report, run_seed
from pykvpool_sim.command.guard import time_limit

#: Seeds that one worker process runs before it is replaced.
SEEDS_PER_WORKER = 100


@dataclass(frozen=True, slots=True)
class Task:
    """One seed, and what is to be found out about it."""

    seed: int
    options: Options
    #: Run it again: equal digests?
    twice: bool = False
    #: Run it again without one of its kinds of faults: another history?
    compare: bool = False


@dataclass(slots=True)
class Result:
    report: Report
    #: None: not asked.
    repeats: bool | None = None
    #: The kind that was left out, and whether that made a difference; "" where none was.
    compared: str = ""
    made_a_difference: bool = False


@dataclass(slots=True)
class Summary:
    """The sum over all seeds."""

    seeds: int = 0
    failed: list[int] = field(default_factory=list)
    unrepeatable: list[int] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    #: By kind of fault: seeds compared without it, and how many of them were different then.
    compared: Counter[str] = field(default_factory=Counter)
    took_effect: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    callbacks: int = 0
    virtual_s: float = 0.0

    def add(self, result: Result) -> None:
        report = result.report
        self.seeds += 1
        if report.failed:
            self.failed.append(report.seed)
        if result.repeats is False:
            self.unrepeatable.append(report.seed)
        self.struck.update(report.struck)
        if result.compared:
            self.compared[result.compared] += 1
            self.took_effect[result.compared] += result.made_a_difference
        self.counts.update(report.counts)
        self.calls.update(report.calls)
        self.callbacks += report.callbacks
        self.virtual_s += report.virtual_s


def work(task: Task) -> Result:
    """One seed; in a worker process or in this one (main thread)."""
    with time_limit():
        report = run_seed(task.seed, task.options)
    result = Result(report)
    if report.failed:
        return result
    if task.twice:
        with time_limit():
            again = run_seed(task.seed, task.options)
        result.repeats = (again.digest, again.history_digest) == (report.digest, report.history_digest)
    kinds = sorted(report.struck)
    if task.compare and kinds:
        result.compared = kinds[task.seed % len(kinds)]
        with time_limit():
            other = run_seed(task.seed, replace(task.options, without=result.compared))
        result.made_a_difference = other.history_digest != report.history_digest
    return result


def run_all(tasks: Iterable[Task], jobs: int) -> Iterator[Result]:
    """Results in the order of the tasks."""
    if jobs <= 1:
        yield from map(work, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=SEEDS_PER_WORKER) as pool:
        yield from pool.imap(work, tasks)
