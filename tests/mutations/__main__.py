"""``python -m tests.mutations``: break a copy of the pool in every way that the table knows, and see who notices.

Exits with 1 if a fault survives, 2 if the harness itself is wrong (a stale patch, a check that fails without a fault).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.mutations.mutation import Mutation, without
from tests.mutations.report import page, simulation_page, text
from tests.mutations.rows import regressions
from tests.mutations.run import Runner
from tests.mutations.simulated import Simulation, failed_seed
from tests.mutations.table import MUTATIONS


def main() -> int:
    options = _options()
    chosen = [each for each in MUTATIONS if options.only in each.name]
    if options.finder != "both":
        chosen = [_alone(each, options.finder) for each in chosen]
        chosen = [each for each in chosen if each.checks or each.simulation]
    for pattern in options.without:
        chosen = without(chosen, pattern)
    chosen = [_searched(each, options) for each in chosen]
    if not chosen:
        print(f"no mutation is called {options.only!r}", file=sys.stderr)
        return 2
    if options.list:
        for each in chosen:
            checks = [check.label for check in (*each.checks, each.simulation) if check is not None]
            print(f"{each.name}: {each.rule} ({each.file}); {', '.join(checks)}")
        return 0
    with tempfile.TemporaryDirectory(prefix="pykvpool-mutations-") as directory:
        if options.find_seeds:
            return _find_seeds(chosen, Path(directory), options)
        return _run(chosen, Path(directory), options)


def _alone(mutation: Mutation, finder: str) -> Mutation:
    """Asked of one finder alone."""
    return replace(mutation, simulation=None) if finder == "tests" else replace(mutation, checks=())


def _searched(mutation: Mutation, options: argparse.Namespace) -> Mutation:
    """The simulator searches as it is told to."""
    search = mutation.simulation
    if not isinstance(search, Simulation):
        return mutation
    if options.seeds and search.seeds > 1:
        search = replace(search, seeds=options.seeds)
    return replace(mutation, simulation=search.without_promises(options.off) if options.off else search)


def _find_seeds(chosen: list[Mutation], directory: Path, options: argparse.Namespace) -> int:
    """New seeds for the regressions among the chosen."""
    known = regressions.simulations()
    wanted = [
        replace(
            each, checks=(), simulation=replace(known[each.name], seeds=options.find_seeds, first=0, budget_s=3_600)
        )
        for each in chosen
        if each.name in known
    ]
    results = Runner(directory, options.jobs).run(wanted, _tell)
    for result in results:
        if result.simulated is not None and result.simulated.found:
            known[result.mutation.name] = replace(known[result.mutation.name], first=failed_seed(result.simulated))
    regressions.keep(known)
    return 0 if all(result.found for result in results) else 1


def _run(chosen: list[Mutation], directory: Path, options: argparse.Namespace) -> int:
    runner = Runner(directory, options.jobs, options.budget)
    wrong = runner.stale(chosen) or runner.baseline(chosen, _tell)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 2
    results = runner.run(chosen, _tell)
    print(text(results))
    if options.table:
        _rewrite(options.table, lambda before: page(results, before, [each.name for each in MUTATIONS]))
    if options.simulation:
        asked = [each.name for each in MUTATIONS if each.simulation is not None]
        _rewrite(options.simulation, lambda before: simulation_page(results, before, asked))
    return 0 if all(result.found for result in results) else 1


def _rewrite(path: Path, write: Callable[[str], str]) -> None:
    path.write_text(write(path.read_text("utf-8") if path.exists() else ""), "utf-8")


def _tell(line: str) -> None:
    print(line, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", metavar="NAME", default="", help="mutations whose name contains this")
    parser.add_argument(
        "--without", metavar="NAME", action="append", default=[], help="leave out checks whose path contains this"
    )
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="copies tested at a time")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of every check, in place of its own")
    parser.add_argument("--table", type=Path, metavar="FILE", help="bring this page up to date")
    parser.add_argument("--simulation", type=Path, metavar="FILE", help="the same, for the simulator's table")
    parser.add_argument("--finder", choices=("tests", "sim", "both"), default="both", help="who is asked")
    parser.add_argument("--seeds", type=int, metavar="N", help="of each search of the simulator, in place of its own")
    parser.add_argument("--off", metavar="LIST", default="", help="promises that the simulator does not judge")
    parser.add_argument(
        "--find-seeds", type=int, metavar="N", help="look among N seeds for one that finds each regression, keep it"
    )
    parser.add_argument("--list", action="store_true", help="name the mutations and their checks, and run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
