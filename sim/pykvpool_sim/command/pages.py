"""What people see: a summary of what was exercised, and what broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pykvpool_sim.cluster import Options, Report
from pykvpool_sim.cluster.run import CHAOS_MS
from pykvpool_sim.cluster.troubles import KINDS
from pykvpool_sim.command.campaign import ENOUGH, Summary
from pykvpool_sim.command.shrink import Shrunken
from pykvpool_sim.command.words import NONE, strikes_text, tape_text, turns_text

#: Outcomes of calls shown; the rest is many words for little.
_MAX_CALLS = 30
#: Lines of a schedule shown, the last ones: a shrunken one is shorter.
_MAX_SCHEDULE = 60


def summary_page(summary: Summary, wall_s: float, *, compare: bool = False, enough: int = ENOUGH) -> RenderableType:
    """Counts of everything, and how fast it went."""
    calls = sum(summary.calls.values())
    lines = [
        f"{summary.seeds:,} seeds, {summary.virtual_s / 3600:,.1f} virtual hours, {calls:,} calls, "
        f"{summary.callbacks:,} callbacks in {wall_s:,.1f} s ({calls / max(wall_s, 1e-9):,.0f} calls/s)"
    ]
    if summary.repeated:
        lines.append(f"{summary.repeated:,} seeds run twice, {len(summary.unrepeatable):,} of them with two digests")
    if compare:
        lines.append(_effects(summary, enough))
    head = Text("\n".join(lines))
    faults = _faults(summary, compare=compare)
    return Group(head, faults, _counts("what happened", summary.counts), _counts("calls", summary.calls))


def _effects(summary: Summary, enough: int) -> str:
    few = [f"{kind} ({summary.took_effect[kind]})" for kind in KINDS if summary.took_effect[kind] < enough]
    if not few:
        return f"every kind of fault took effect in {enough:,} seeds or more"
    return f"took effect in fewer than {enough:,} seeds: {', '.join(few)}"


def _faults(summary: Summary, *, compare: bool) -> Table:
    table = Table("fault", title="faults", title_justify="left")
    for heading in ("strikes", "found a victim", "in seeds", *(("compared", "took effect") if compare else ())):
        table.add_column(heading, justify="right")
    for kind in KINDS:
        counts = [summary.struck[kind], summary.fired[kind], summary.seeds_with[kind]]
        if compare:
            counts += [summary.compared[kind], summary.took_effect[kind]]
        if any(counts):
            table.add_row(kind, *(f"{count:,}" for count in counts))
    return table


def _counts(title: str, counts: Counter[str]) -> Table:
    table = Table("what", title=title, title_justify="left")
    table.add_column("how often", justify="right")
    for name, count in counts.most_common(_MAX_CALLS if title == "calls" else None):
        table.add_row(name, f"{count:,}")
    return table


def failure_page(smallest: Shrunken, whole: Report) -> Iterator[str]:
    """What broke, the schedule that it takes, the story, and how to see it again."""
    report, options = smallest.report, smallest.options
    yield f"seed {report.seed} breaks {len(report.violations)} promise(s):"
    yield from (f"  {violation}" for violation in report.violations)
    yield f"the schedule ({_size(smallest, whole)}):"
    hidden = len(report.schedule) - _MAX_SCHEDULE
    if hidden > 0:
        yield f"  ({hidden} lines before)"
    yield from (f"  {line}" for line in report.schedule[-_MAX_SCHEDULE:])
    for story in report.stories:
        yield "the story:"
        yield from (f"  {line}" for line in story)
    yield f"replay: {replay_command(report.seed, options)}"


def _size(smallest: Shrunken, whole: Report) -> str:
    """How much of the run that failed is left."""
    report, tape = smallest.report, smallest.options.tape
    order = "in the seed's own order"
    if tape is not None:
        odd = sum(1 for choice in tape if choice)
        order = f"first in first out{f' but for {odd} choices' if odd else ''}"
    size = (
        f"{sum(report.struck.values())} of {sum(whole.struck.values())} strikes, {len(report.hosts)} of "
        f"{len(whole.hosts)} hosts, {len(report.turns)} of {len(whole.turns)} turns, {order}"
    )
    return f"{size}; after {smallest.runs} runs" if smallest.runs else size


def replay_command(seed: int, options: Options) -> str:
    """The command line that runs exactly this again."""
    return " ".join(["pykvpool", "sim", "--seed", str(seed), *option_words(options)])


def option_words(options: Options) -> list[str]:
    """As one would type them."""
    words: list[str] = []
    if options.everywhere:
        words += ["--everywhere"]
    if options.only:
        words += ["--faults", f"'{','.join(options.only)}'"]
    if options.strikes:
        words += ["--strikes", f"'{strikes_text(options.strikes)}'"]
    if options.without:
        words += ["--without", f"'{options.without}'"]
    if options.keep is not None:
        words += ["--keep", ",".join(map(str, options.keep)) or NONE]
    if options.hosts is not None:
        words += ["--hosts", ",".join(options.hosts) or NONE]
    if options.turns is not None:
        words += ["--turns", f"'{turns_text(options.turns)}'"]
    if options.tape is not None:
        words += ["--tape", tape_text(options.tape)]
    if options.chaos_ms != CHAOS_MS:
        words += ["--chaos-s", f"{options.chaos_ms / 1_000:g}"]
    if options.off:
        words += ["--off", ",".join(sorted(options.off))]
    return words


def print_lines(console: Console, lines: Iterator[str]) -> None:
    """As they are: no markup, no wrapping, so that they can be copied."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
