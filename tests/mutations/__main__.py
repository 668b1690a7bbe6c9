"""``python -m tests.mutations``: break a copy of the pool in every way that the table knows, and see who notices.

Exits with 1 if a fault survives, 2 if the harness itself is wrong (a stale patch, a check that fails without a fault).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.mutations.mutation import BUDGET_S, Mutation, without
from tests.mutations.report import page, text
from tests.mutations.run import Runner
from tests.mutations.table import MUTATIONS


def main() -> int:
    options = _options()
    chosen = [each for each in MUTATIONS if options.only in each.name]
    for pattern in options.without:
        chosen = without(chosen, pattern)
    if not chosen:
        print(f"no mutation is called {options.only!r}", file=sys.stderr)
        return 2
    if options.list:
        for each in chosen:
            print(f"{each.name}: {each.rule} ({each.file}); {', '.join(check.label for check in each.checks)}")
        return 0
    with tempfile.TemporaryDirectory(prefix="pykvpool-mutations-") as directory:
        return _run(chosen, Path(directory), options)


def _run(chosen: list[Mutation], directory: Path, options: argparse.Namespace) -> int:
    runner = Runner(directory, options.jobs, options.budget)
    wrong = runner.stale(chosen) or runner.baseline(chosen, _tell)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 2
    results = runner.run(chosen, _tell)
    print(text(results))
    if options.table:
        options.table.write_text(page(results), "utf-8")
    return 0 if all(result.verdict.found for result in results) else 1


def _tell(line: str) -> None:
    print(line, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", metavar="NAME", default="", help="mutations whose name contains this")
    parser.add_argument(
        "--without", metavar="NAME", action="append", default=[], help="leave out checks whose path contains this"
    )
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="copies tested at a time")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS", help="of one check")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table as Markdown")
    parser.add_argument("--list", action="store_true", help="name the mutations and their checks, and run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
