"""Runs checks in scratch copies, several at a time, each within its budget.

First every check runs once on the healthy copy: one that fails there would "find" everything. A run that hangs is ended
with all its processes, and has found nothing: a check that only times out proves no promise.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.mutations.mutation import Check, Mutation, StalePatch, Verdict
from tests.mutations.scratch import copy_of, copy_repository, environment


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one mutation."""

    mutation: Mutation
    verdict: Verdict
    #: Of the checks that ran, copying not included.
    seconds: float
    #: What the simulator found, and how long it took; None: it was not asked.
    simulated: Verdict | None = None
    simulated_s: float = 0.0

    @property
    def found(self) -> bool:
        """By everyone who ought to."""
        asked = bool(self.mutation.checks) or self.simulated is not None
        by_tests = self.verdict.found or not self.mutation.checks
        return asked and by_tests and (self.simulated is None or self.simulated.found)

    @property
    def words(self) -> str:
        if not self.mutation.checks and self.simulated is None:
            return "SURVIVED: no check looks for it"
        said = [_words("", self.verdict)] if self.mutation.checks else []
        if self.simulated is not None:
            said.append(_words("the simulator: ", self.simulated))
        return "; ".join(said)


def _words(who: str, verdict: Verdict) -> str:
    if verdict.found:
        return f"{who}{'' if who else 'found by '}{verdict.finder}"
    return f"{who}SURVIVED: {verdict.trouble}" if verdict.trouble else f"{who}SURVIVED"


class Runner:
    """One scratch directory, one healthy copy in it."""

    def __init__(self, scratch: Path, jobs: int, budget_s: float | None = None) -> None:
        """`budget_s`: of every check, in place of its own."""
        self._scratch = scratch
        self._jobs = jobs
        self._budget_s = budget_s
        self._healthy = copy_repository(scratch / "healthy")

    def stale(self, mutations: Sequence[Mutation]) -> list[str]:
        """Patches that no longer fit the code; nothing is worth running before they do."""
        errors: list[str] = []
        for each in mutations:
            try:
                each.applied_to_file(self._healthy)
            except StalePatch as error:
                errors.append(str(error))
        return errors

    def baseline(self, mutations: Sequence[Mutation], tell: Callable[[str], None]) -> list[str]:
        """What is wrong with the checks themselves: those that fail, or say nothing, where nothing is broken."""
        checks: dict[str, Check] = {}
        for each in mutations:
            checks |= {check.label: check for check in (*each.checks, each.simulation) if check is not None}
        wrong: list[str] = []
        with ThreadPoolExecutor(self._jobs) as pool:
            runs = {pool.submit(self._check, self._healthy, check): label for label, check in checks.items()}
            for number, run in enumerate(as_completed(runs), 1):
                verdict, seconds = run.result()
                label = runs[run]
                tell(f"healthy {number}/{len(runs)}  {seconds:5.1f} s  {label}")
                if verdict.found or verdict.trouble:
                    wrong.append(f"{label} fails on the healthy pool: {verdict.finder or verdict.trouble}")
        return wrong

    def run(self, mutations: Sequence[Mutation], tell: Callable[[str], None]) -> list[Result]:
        """One result per mutation, in their order."""
        copies = self._copies(mutations)
        with ThreadPoolExecutor(self._jobs) as pool:
            runs = [pool.submit(self._try, each, copy) for each, copy in zip(mutations, copies, strict=True)]
            for number, run in enumerate(as_completed(runs), 1):
                result = run.result()
                seconds = result.seconds + result.simulated_s
                tell(f"{number}/{len(runs)}  {seconds:5.1f} s  {result.mutation.name}: {result.words}")
        return [run.result() for run in runs]

    def _copies(self, mutations: Sequence[Mutation]) -> list[Path]:
        """A copy for each, patched."""
        copies: list[Path] = []
        for number, each in enumerate(mutations):
            copies.append(copy_of(self._healthy, self._scratch / f"{number:03d}-{each.name}"))
            each.apply(copies[-1])
        return copies

    def _try(self, mutation: Mutation, copy: Path) -> Result:
        total_s, verdict = 0.0, Verdict(False)
        for check in mutation.checks:
            verdict, seconds = self._check(copy, check)
            total_s += seconds
            if verdict.found:
                break
        if mutation.simulation is None:
            return Result(mutation, verdict, total_s)
        return Result(mutation, verdict, total_s, *self._check(copy, mutation.simulation))

    def _check(self, root: Path, check: Check) -> tuple[Verdict, float]:
        budget_s = self._budget_s or check.budget_s
        started = time.monotonic()
        process = subprocess.Popen(
            check.command(sys.executable),
            cwd=root,
            env=environment(root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=budget_s)
        except subprocess.TimeoutExpired:
            return Verdict(False, trouble=f"over its budget of {budget_s:g} s"), time.monotonic() - started
        finally:
            # A session of its own: whatever the tests started goes with them.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return check.verdict(process.returncode, output), time.monotonic() - started
