"""The table of mutations: for a terminal, and as pages for the docs.

A run of some mutations brings the rows of a page up to date that it has results for, and leaves the others as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.mutations.run import Result
from tests.mutations.simulated import not_run, unseen

PAGE = """# Mutations: the proof that the tests bite

Each row is a fault put into a copy of the pool by hand, the promise or rule that it breaks, and the first test that
noticed, with the seconds that took. `make test-mutations` runs them all, and fails if a single fault survives; with
`ARGS="--table docs/mutations.md"` it makes this table. `python -m tests.mutations --without NAME` leaves one check out,
so that one can see which faults only it finds. A patch that no longer fits the code is an error. To add a row, see
`tests/mutations/rows`.

Of many of them the simulator is asked as well, and has to find them too: [simulation.md](simulation.md#mutations) has
what it said.

| mutation | breaks | file | found by | s |
|---|---|---|---|---|
"""
#: Around what a command writes in docs/simulation.md.
BEGIN, END = "<!-- made by `python -m tests.mutations --simulation` -->\n", "<!-- end -->\n"
_HEAD = "| mutation | breaks | budget | s | what it said |\n|---|---|---|---|---|\n"
_SURVIVED = "**SURVIVED**"


def page(results: Sequence[Result], before: str, names: Sequence[str]) -> str:
    """Markdown: the page as it was `before`, with these results; `names`: of all mutations, in order."""
    fresh = {result.mutation.name: _row(result) for result in results}
    return PAGE + "".join(_merged(before, fresh, names))


def _merged(before: str, fresh: dict[str, str], names: Iterable[str]) -> list[str]:
    """Rows of the table, old and new."""
    lines = (line for line in before.splitlines(keepends=True) if line.startswith("| "))
    rows = {line.removeprefix("| ").partition(" |")[0]: line for line in lines} | fresh
    return [rows[name] for name in names if name in rows]


def _row(result: Result) -> str:
    mutation = result.mutation
    finder = f"`{result.verdict.finder.removeprefix('tests/')}`" if result.verdict.found else _SURVIVED
    cells = (mutation.name, mutation.rule, f"`{mutation.file}`", finder, f"{result.seconds:.1f}")
    return f"| {' | '.join(cells)} |\n"


def simulation_page(results: Sequence[Result], before: str, names: Sequence[str]) -> str:
    """The page with what the simulator found, and what it cannot, between its marks; `names`: of all mutations of which
    it is asked. Raises ValueError where the page has no marks."""
    head, begin, rest = before.partition(BEGIN)
    section, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table: {BEGIN.strip()} ... {END.strip()}")
    found, _, _ = section.partition("What it cannot see")
    fresh = {result.mutation.name: _simulated_row(result) for result in results if result.simulated is not None}
    rows = _merged(found, fresh, names)
    survived = sum(_SURVIVED in row for row in rows)
    count = f"{len(rows) - survived} of {len(rows)} mutations were found.\n\n"
    others = "".join(f"| {name} | {why} |\n" for name, why in unseen())
    cannot = f"What it cannot see, and why the tests have to:\n\n| mutation | why |\n|---|---|\n{others}"
    files = "".join(f"| `{file}` | {why} |\n" for file, why in not_run())
    nothing = (
        "Files of which it runs nothing, so that what is wrong there is nothing to it:\n\n| files | why |\n|---|---|\n"
    )
    return f"{head}{BEGIN}\n{count}{_HEAD}{''.join(rows)}\n{cannot}\n{nothing}{files}\n{END}{tail}"


def _simulated_row(result: Result) -> str:
    mutation, verdict = result.mutation, result.simulated
    assert mutation.simulation is not None and verdict is not None
    said = _escaped(verdict.finder) if verdict.found else f"{_SURVIVED} {_escaped(verdict.trouble)}".strip()
    cells = (mutation.name, mutation.rule, f"`{mutation.simulation.label}`", f"{result.simulated_s:.1f}", said)
    return f"| {' | '.join(cells)} |\n"


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
