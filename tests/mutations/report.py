"""The table of mutations: for a terminal, and as a page for the docs."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutations.run import Result

PAGE = """# Mutations: the proof that the tests bite

Each row is a fault put into a copy of the pool by hand, the promise or rule that it breaks, and the first test that
noticed, with the seconds that took. `make test-mutations` makes this table and fails if a single fault survives;
`python -m tests.mutations --without NAME` leaves one check out, so that one can see which faults only it finds.
A patch that no longer fits the code is an error. To add a row, see `tests/mutations/rows`.

| mutation | breaks | file | found by | s |
|---|---|---|---|---|
"""


def page(results: Sequence[Result]) -> str:
    """Markdown."""
    return PAGE + "".join(_row(result) for result in results)


def _row(result: Result) -> str:
    mutation = result.mutation
    finder = f"`{result.verdict.finder.removeprefix('tests/')}`" if result.verdict.found else f"**{result.words}**"
    return f"| {mutation.name} | {mutation.rule} | `{mutation.file}` | {finder} | {result.seconds:.1f} |\n"


def text(results: Sequence[Result]) -> str:
    """For a terminal: one line a row, survivors last and loud."""
    width = max(len(result.mutation.name) for result in results)
    ordered = sorted(results, key=lambda result: not result.verdict.found)
    lines = [f"{result.mutation.name:<{width}}  {result.seconds:5.1f} s  {result.words}" for result in ordered]
    survived = sum(not result.verdict.found for result in results)
    lines.append(f"{len(results)} mutations, {len(results) - survived} found, {survived} survived")
    return "\n".join(lines)
