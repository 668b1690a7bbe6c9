"""The simulator as a finder: seeds of the whole cluster, run on a broken copy until one of them breaks a promise.

`SIMULATED` says which mutations it has to find, within how many seeds and with which faults; `UNSEEN` says of others
why it cannot, and a test of their own has to do. What is in neither was not asked of it: most of all what the simulated
cluster does not run (real sockets and shared memory, hashing, the frames' codec).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.mutations.mutation import Verdict

#: Seeds of a search, unless the row says otherwise.
SEEDS = 40
#: What one search may take, healthy runs included: a second a seed on a machine that has much else to do, twice over.
BUDGET_S = 240.0
#: Its exit codes: all seeds passed, some failed.
_PASSED, _FAILED = 0, 1
#: Of a violation, in the table.
_MAX_WORDS = 110


@dataclass(frozen=True, slots=True)
class Simulation:
    """A check: the first of `seeds` seeds that fails."""

    seeds: int = SEEDS
    first: int = 0
    #: Only these kinds of faults; empty: all.
    faults: tuple[str, ...] = ()
    #: Further options of the command.
    options: tuple[str, ...] = ()
    budget_s: float = BUDGET_S

    @property
    def arguments(self) -> list[str]:
        """As one would type them."""
        seeds = f"{self.first}-{self.first + self.seeds - 1}" if self.first else str(self.seeds)
        which = ["--seed", str(self.first)] if self.seeds == 1 else ["--seeds", seeds]
        faults = ["--faults", ",".join(self.faults)] if self.faults else []
        return [*which, *faults, *self.options]

    @property
    def label(self) -> str:
        return " ".join(["sim", *(f"'{word}'" if " " in word else word for word in self.arguments)])

    def command(self, python: str) -> list[str]:
        return [python, "-m", "pykvpool_sim", *self.arguments, "--no-shrink", "--first-failure", "--jobs", "1"]

    def verdict(self, returncode: int, output: str) -> Verdict:
        if returncode == _PASSED:
            return Verdict(False)
        seed = re.search(r"^seed (\d+) breaks ", output, re.MULTILINE)
        said = re.search(r"^  (P\d|calm|bug) at [\d.]+ s: (.*)$", output, re.MULTILINE)
        if returncode != _FAILED or seed is None or said is None:
            return Verdict(False, trouble=output.strip()[-2_000:] or f"the simulator ended with {returncode}")
        words = said[2] if len(said[2]) <= _MAX_WORDS else f"{said[2][:_MAX_WORDS]}..."
        return Verdict(True, f"seed {seed[1]}: {said[1]}: {words}")

    def without_promises(self, off: str) -> Simulation:
        """The same search with these promises not judged (comma-separated)."""
        return replace(self, options=(*self.options, "--off", off))


def failed_seed(verdict: Verdict) -> int:
    """Of a verdict that found something."""
    return int(verdict.finder.partition(":")[0].removeprefix("seed "))


#: Seeds as they come.
ANY = Simulation()

SIMULATED: dict[str, Simulation] = {}

UNSEEN: dict[str, str] = {}


def unseen(names: list[str]) -> Iterator[tuple[str, str]]:
    """Of these mutations, those that the simulator cannot see, and why."""
    return ((name, UNSEEN[name]) for name in names if name in UNSEEN)
