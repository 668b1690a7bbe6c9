"""One mutation: a fault put into the pool by hand, the promise that it breaks, and who ought to find it.

A mutation is a minimal patch (exact old text, new text) to one file of the package. It is applied to a scratch copy,
never to the work tree. Its checks are run one after the other, cheapest first, until one finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

#: What a selection of tests may take before the mutation counts as not found by it. A loaded two-core machine included.
BUDGET_S = 60.0


class StalePatch(Exception):
    """The code that a mutation was written against has changed: the row has to be written anew."""


class Check(Protocol):
    """Something that can be run in a scratch copy and that passes on a healthy pool."""

    @property
    def label(self) -> str:
        """Names it in tables, and for ``--without``."""
        ...

    @property
    def budget_s(self) -> float:
        """Seconds it may take; then it has found nothing."""
        ...

    def command(self, python: str) -> list[str]:
        """What to run in the root of the copy."""
        ...

    def verdict(self, returncode: int, output: str) -> Verdict:
        """What a run that ended by itself says."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one check ended."""

    found: bool
    #: What noticed the fault: the first test that failed. Empty where nothing did.
    finder: str = ""
    #: Why the run says nothing at all (nothing was collected, the copy cannot be imported). Empty: it ran.
    trouble: str = ""


#: pytest's exit codes: all passed, some failed. Everything else is trouble of the harness, and no finding.
_PASSED, _FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of tests, as pytest takes it: a file, or one test in it."""

    where: str
    budget_s: float = BUDGET_S

    @property
    def label(self) -> str:
        return self.where

    def command(self, python: str) -> list[str]:
        # The copy is thrown away, and the name of the failure is all that is read: no cache, no trace, no shrinking.
        quiet = ["-x", "-p", "no:cacheprovider", "--tb=no", "-rfE", "--hypothesis-profile=hunt"]
        return [python, "-m", "pytest", *quiet, self.where]

    def verdict(self, returncode: int, output: str) -> Verdict:
        failures = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        if returncode == _PASSED:
            return Verdict(False)
        if returncode != _FAILED or not failures:
            return Verdict(False, trouble=output.strip()[-2_000:] or f"pytest ended with {returncode}")
        return Verdict(True, failures[0].split(" ", 1)[1].split(" - ")[0])


@dataclass(frozen=True, slots=True)
class Mutation:
    """A row of the table."""

    #: What is done to the pool, in words joined by hyphens; unique.
    name: str
    #: The promise (design P1 to P12) or the rule that it breaks.
    rule: str
    #: From the root of the repository.
    file: str
    #: Occurs exactly once in the file.
    old: str
    new: str
    #: Who ought to find it, cheapest first.
    checks: tuple[Check, ...]
    #: Who ought to find it besides: seeds of the simulator. None: that is not asked of it.
    simulation: Check | None = None

    def applied_to(self, text: str) -> str:
        """The file's text with the fault in it. Raises `StalePatch`."""
        count = text.count(self.old)
        if count != 1:
            raise StalePatch(
                f"mutation {self.name}: its old text occurs {count} times in {self.file}, not once. The code has "
                f"changed: write the row anew. It looks for:\n{self.old}"
            )
        return text.replace(self.old, self.new)

    def applied_to_file(self, root: Path) -> str:
        """The text of the file below `root` with the fault in it. Raises `StalePatch`."""
        path = root / self.file
        if not path.is_file():
            raise StalePatch(f"mutation {self.name}: there is no {self.file} any more")
        return self.applied_to(path.read_text("utf-8"))

    def apply(self, root: Path) -> None:
        """Put the fault into the copy at `root`. Raises `StalePatch`."""
        path = root / self.file
        path.write_text(self.applied_to_file(root), "utf-8")
        # The bytecode of the healthy file must not be taken for that of this one.
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            stale.unlink()


def selections(*where: str) -> tuple[Check, ...]:
    """Checks from test selections, below ``tests/``."""
    return tuple(Selection(f"tests/{each}") for each in where)


def without(mutations: Sequence[Mutation], pattern: str) -> list[Mutation]:
    """The same mutations, every check whose label contains `pattern` switched off."""
    return [
        replace(
            each,
            checks=tuple(check for check in each.checks if pattern not in check.label),
            simulation=each.simulation if each.simulation and pattern not in each.simulation.label else None,
        )
        for each in mutations
    ]
