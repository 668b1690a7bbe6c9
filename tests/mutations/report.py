"""The table of mutations: for a terminal, and as pages for the docs."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutations.run import Result
from tests.mutations.simulated import unseen

PAGE = """# Mutations: the proof that the tests bite

Each row is a fault put into a copy of the pool by hand, the promise or rule that it breaks, and the first test that
noticed, with the seconds that took. Where the simulator is asked as well, the next column has what it said, and that
has to be something; [simulation.md](simulation.md#mutations) has its budgets. `make test-mutations` makes this table
and fails if a single fault survives; `python -m tests.mutations --without NAME` leaves one check out, so that one can
see which faults only it finds. A patch that no longer fits the code is an error. To add a row, see
`tests/mutations/rows`; to ask the simulator, `tests/mutations/simulated.py`.

| mutation | breaks | file | found by | s | the simulator |
|---|---|---|---|---|---|
"""
#: Around what a command writes in docs/simulation.md.
BEGIN, END = "<!-- made by `python -m tests.mutations --simulation` -->\n", "<!-- end -->\n"


def page(results: Sequence[Result]) -> str:
    """Markdown."""
    return PAGE + "".join(_row(result) for result in results)


def _row(result: Result) -> str:
    mutation = result.mutation
    finder = f"`{result.verdict.finder.removeprefix('tests/')}`" if result.verdict.found else "**SURVIVED**"
    if not mutation.checks:
        finder = "-"
    simulated = "" if result.simulated is None else _escaped(result.simulated.finder) or "**SURVIVED**"
    cells = (mutation.name, mutation.rule, f"`{mutation.file}`", finder, f"{result.seconds:.1f}", simulated)
    return f"| {' | '.join(cells)} |\n"


def simulation_section(results: Sequence[Result]) -> str:
    """Markdown: what the simulator found, and what it cannot."""
    asked = [result for result in results if result.simulated is not None]
    found = sum(result.simulated is not None and result.simulated.found for result in asked)
    lines = [f"{found} of {len(asked)} mutations were found.\n\n"]
    lines += ["| mutation | breaks | budget | s | what it said |\n", "|---|---|---|---|---|\n"]
    for result in asked:
        mutation, verdict = result.mutation, result.simulated
        assert mutation.simulation is not None and verdict is not None
        said = _escaped(verdict.finder) if verdict.found else f"**{_escaped(verdict.trouble) or 'SURVIVED'}**"
        cells = (mutation.name, mutation.rule, f"`{mutation.simulation.label}`", f"{result.simulated_s:.1f}", said)
        lines.append(f"| {' | '.join(cells)} |\n")
    lines += ["\nWhat it cannot see, and why the tests have to:\n\n", "| mutation | why |\n", "|---|---|\n"]
    lines += [f"| {name} | {why} |\n" for name, why in unseen([result.mutation.name for result in results])]
    return "".join(lines)


def put_into(text: str, section: str) -> str:
    """The page with the section between its marks. Raises ValueError where it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table: {BEGIN.strip()} ... {END.strip()}")
    return f"{before}{BEGIN}\n{section}\n{END}{after}"


def text(results: Sequence[Result]) -> str:
    """For a terminal: one line a row, survivors last and loud."""
    width = max(len(result.mutation.name) for result in results)
    ordered = sorted(results, key=lambda result: not result.found)
    lines = [
        f"{result.mutation.name:<{width}}  {result.seconds + result.simulated_s:5.1f} s  {result.words}"
        for result in ordered
    ]
    survived = sum(not result.found for result in results)
    lines.append(f"{len(results)} mutations, {len(results) - survived} found, {survived} survived")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Nothing ends a cell, or looks like markup."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
