"""Runs spread over processes, each with a hash seed of its own, so that whatever depends on hashes shows.

A worker gets one run at a time: who hands them out may look at one result before it decides on the next. After some
dozens of runs a worker is replaced, because crashed hosts leak what they held, on purpose; the one that takes its
place has the same hash seed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Protocol

from pykvpool_sim.cluster import Options, Report, run_seed
from pykvpool_sim.cluster.told import Comparison
from pykvpool_sim.command.guard import time_limit

#: Runs of one worker process.
RUNS_PER_WORKER = 100
_HASH_SEED = "PYTHONHASHSEED"


@dataclass(frozen=True, slots=True)
class Run:
    """What a worker is to do."""

    seed: int
    options: Options
    #: The run to compare this one with.
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of it."""

    report: Report
    #: What a comparison found.
    differs: bool = False


class Source(Protocol):
    """Hands out runs, and is told what came of them."""

    def next_run(self, worker: int) -> Run | None:
        """For the worker of this number. None: nothing for it now; it is asked again after the next result."""
        ...

    def ran(self, worker: int, run: Run, result: Ran) -> None: ...


def carry_out(run: Run) -> Ran:
    """In the main thread of this process."""
    with time_limit():
        report = run_seed(run.seed, run.options, run.comparison)
    return Ran(report, run.comparison is not None and run.comparison.differs)


def run_here(source: Source) -> Iterator[None]:
    """Everything in this process, one after the other. Yields after each run."""
    while (run := source.next_run(0)) is not None:
        source.ran(0, run, carry_out(run))
        yield


def run_in_processes(source: Source, count: int) -> Iterator[None]:
    """Everything in `count` processes. Yields after each run. One that dies in the middle of a run is replaced, and the
    run has failed."""
    workers = [_Worker(number) for number in range(count)]
    idle, busy = list(workers), dict[Connection, tuple[_Worker, Run]]()
    try:
        while True:
            for worker in list(idle):
                run = source.next_run(worker.number)
                if run is not None:
                    idle.remove(worker)
                    busy[worker.send(run)] = (worker, run)
            if not busy:
                return
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker, run = busy.pop(ready)
                source.ran(worker.number, run, worker.receive(run))
                idle.append(worker)
                yield
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """One process at a time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._left = 0
        self._connection: Connection | None = None
        self._process: multiprocessing.process.BaseProcess | None = None

    def send(self, run: Run) -> Connection:
        """Where the answer will come."""
        if self._connection is None or not self._left:
            self.end()
            self._connection = self._begin()
        self._left -= 1
        self._connection.send(run)
        return self._connection

    def receive(self, run: Run) -> Ran:
        """The answer, once it is there."""
        assert self._connection is not None
        try:
            answer: Ran = self._connection.recv()
        except EOFError:
            self.end()
            return Ran(Report(run.seed, violations=["bug at ? s: the simulator failed, or was killed; see its output"]))
        return answer

    def end(self) -> None:
        """Also in the middle of a run."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.terminate()
            self._process.join()
        self._connection = self._process = None

    def _begin(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there,), daemon=True)
        before = os.environ.get(_HASH_SEED)
        os.environ[_HASH_SEED] = str(self.number + 1)  # read when a Python starts, and only then
        try:
            self._process.start()
        finally:
            if before is None:
                del os.environ[_HASH_SEED]
            else:
                os.environ[_HASH_SEED] = before
        there.close()
        self._left = RUNS_PER_WORKER
        return here


def _serve(connection: Connection) -> None:
    """The worker process, until the other end is closed. An error of the simulator itself ends it, with a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the command alone, which ends us
    while True:
        try:
            run = connection.recv()
        except EOFError:
            return
        connection.send(carry_out(run))
