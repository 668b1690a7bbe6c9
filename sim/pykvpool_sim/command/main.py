"""The click command. It joins `pykvpool` through the entry-point group `pykvpool.commands`; ``python -m pykvpool_sim``
is the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from pykvpool.cli.screen import console
from pykvpool_sim.cluster import Options, Report, run_seed
from pykvpool_sim.cluster.run import CHAOS_MS
from pykvpool_sim.cluster.troubles import KINDS
from pykvpool_sim.command.campaign import ENOUGH, Campaign, Summary, Wishes
from pykvpool_sim.command.guard import interrupted_by_sigterm, time_limit
from pykvpool_sim.command.pages import failure_page, print_lines, replay_command, summary_page
from pykvpool_sim.command.progress import ProgressLine
from pykvpool_sim.command.record import read_record, write_record
from pykvpool_sim.command.shrink import LIMIT_S, Shrunken, shrink
from pykvpool_sim.command.words import read_strikes, read_tape, read_turns
from pykvpool_sim.plan import Strike

PROMISES = ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "calm", "bug")
#: Failures told in full; of the others, the seed.
_TOLD = 3


Callback = Callable[[click.Context, click.Parameter, str | None], object]


def _names(allowed: tuple[str, ...]) -> Callback:
    """Reads comma-separated names out of a list."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
        names = tuple(name.strip() for name in (value or "").split(",") if name.strip())
        for name in names:
            if name not in allowed:
                raise click.BadParameter(f"{name!r} is none of: {', '.join(allowed)}")
        return names

    return read


def _numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Reads comma-separated whole numbers, or "none"."""
    if value is None:
        return None
    try:
        return () if value == "none" else tuple(int(number) for number in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r}: write numbers like 0,3,7, or none") from None


def _read(read: Callable[[str], object], like: str) -> Callback:
    """Reads what `pykvpool_sim.command.words` writes."""

    def checked(ctx: click.Context, param: click.Parameter, value: str | None) -> object:
        try:
            return None if value is None else read(value)
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: {error}; write {like}, or none") from None

    return checked


def _hosts(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _range(ctx: click.Context, param: click.Parameter, value: str | None) -> range | None:
    """Reads a count, or first and last."""
    if value is None:
        return None
    first, dash, last = value.partition("-")
    if not (first.isascii() and first.isdigit()) or (dash and not (last.isascii() and last.isdigit())):
        raise click.BadParameter(f"{value!r}: write a count like 1000, or the first and the last like 2000-2999")
    numbers = range(int(first), int(last) + 1) if dash else range(int(first))
    if not numbers:
        raise click.BadParameter(f"{value!r} has no seed in it")
    return numbers


@click.command()
@click.option("--seed", type=click.IntRange(min=0), help="Simulate this one.")
@click.option(
    "--seeds", metavar="COUNT|FIRST-LAST", callback=_range, help="Simulate so many seeds, or these.  [default: 100]"
)
@click.option("--faults", "only", metavar="LIST", callback=_names(KINDS), help="Only these kinds of faults.")
@click.option(
    "--without", default="", type=click.Choice(("", *KINDS)), help="Leave out one kind; all else is as it was."
)
@click.option(
    "--strikes", metavar="STRIKES", callback=_read(read_strikes, "pause at master from 8000 for 15000; kill at ..."),
    help="These strikes (times in ms), in place of those that the seed draws.",
)  # fmt: skip
@click.option(
    "--everywhere", is_flag=True, help="All clients want a copy on every node, and no fewer; else, as they are drawn."
)
@click.option("--keep", metavar="NUMBERS", callback=_numbers, help="Only these strikes of the seed's plan, by number.")
@click.option(
    "--hosts", metavar="LIST", callback=_read(_hosts, "node-0,client-1"), help="Only these nodes and clients."
)
@click.option(
    "--turns", metavar="TURNS", callback=_read(read_turns, "client-0:3-7,9;client-2:1"), help="Only these turns."
)
@click.option(
    "--tape", metavar="CHOICES", callback=_read(read_tape, "15:3,23:1"),
    help="Who runs next: first in first out but for these choices.",
)  # fmt: skip
@click.option(
    "--chaos-s", type=click.FloatRange(1, 3_600), default=CHAOS_MS / 1_000, show_default=True,
    help="Virtual seconds of trouble in each run.",
)  # fmt: skip
@click.option(
    "--off", metavar="LIST", callback=_names(PROMISES), help="Do not judge these promises: what would go unseen?"
)
@click.option("--trace", is_flag=True, help="Print all that happened (with --seed).")
@click.option("--twice", is_flag=True, help="Run each seed twice, in two processes: equal digests?")
@click.option(
    "--compare",
    is_flag=True,
    help="Run each seed again without each of its kinds of faults: are clients told the same?",
)
@click.option(
    "--enough",
    type=click.IntRange(min=1),
    default=ENOUGH,
    show_default=True,
    help="Compare a kind of fault until it took effect in so many seeds.",
)
@click.option(
    "--json",
    "record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the figures to a file, as they grow.",
)
@click.option("--resume", is_flag=True, help="Go on from the figures in the --json file, if it is there.")
@click.option("--shrink/--no-shrink", "smaller", default=True, help="Look for what a failure needs, and no more.")
@click.option(
    "--shrink-s", type=click.FloatRange(0), default=LIMIT_S, show_default=True, help="Seconds spent on that, for each."
)
@click.option("--first-failure", "first_failure", is_flag=True, help="End with the first seed that fails.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes.  [default: one per core]")
def sim(
    seed: int | None,
    seeds: range | None,
    only: tuple[str, ...],
    without: str,
    strikes: tuple[Strike, ...] | None,
    everywhere: bool,
    keep: tuple[int, ...] | None,
    hosts: tuple[str, ...] | None,
    turns: frozenset[str] | None,
    tape: bytes | None,
    chaos_s: float,
    off: tuple[str, ...],
    trace: bool,
    twice: bool,
    compare: bool,
    enough: int,
    record: Path | None,
    resume: bool,
    smaller: bool,
    shrink_s: float,
    first_failure: bool,
    jobs: int | None,
) -> None:
    """Run the whole pool in simulated time, with every fault there is, and judge every promise.

    Exit code 1 where one is broken; then it says which, the schedule that it takes, the story of the object, and the
    command that replays it.
    """
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed is one, --seeds are many: give either")
    if trace and seed is None:
        raise click.UsageError("--trace prints one run: name it with --seed")
    if compare and without:
        raise click.UsageError("--compare leaves out one kind after the other: do without --without")
    options = Options(
        only=only,
        strikes=strikes or (),
        everywhere=everywhere,
        without=without,
        keep=keep,
        hosts=hosts,
        turns=turns,
        tape=tape,
        chaos_ms=round(chaos_s * 1_000),
        off=frozenset(off),
        timeline=trace,
    )
    wishes = Wishes(options, twice, compare, enough)
    numbers = range(seed, seed + 1) if seed is not None else seeds or range(100)
    processes = 1 if seed is not None else min(jobs or os.cpu_count() or 1, len(numbers))
    screen = console()
    before, before_s = _earlier(record, wishes) if resume else (Summary(), 0.0)
    campaign = Campaign(numbers, wishes, before)
    summary, wall_s = _run(campaign, wishes, numbers, processes, record, before_s, first_failure=first_failure)
    if seed is not None:
        _one(screen, summary.last)
    if seed is None or not summary.failures:
        screen.print(summary_page(summary, wall_s, compare=compare, enough=enough))
    if seed is not None and not summary.failures:
        print_lines(screen, iter([f"digest {summary.last.digest}"]))
    if _tell(screen, summary, shrink_s if smaller else 0.0):
        raise click.exceptions.Exit(1)


def _run(
    campaign: Campaign,
    wishes: Wishes,
    numbers: range,
    processes: int,
    record: Path | None,
    before_s: float,
    *,
    first_failure: bool,
) -> tuple[Summary, float]:
    """All seeds, or those before the first failure, Ctrl-C or SIGTERM. Returns the sum, and the time it took in
    seconds."""
    begun_s = time.perf_counter() - before_s
    summary = campaign.summary
    with ProgressLine(Console(stderr=True), len(numbers), summary.seeds) as progress, interrupted_by_sigterm():
        try:
            for _ in campaign.run(processes):
                if progress.update(summary) and record is not None:
                    write_record(record, summary, wishes, time.perf_counter() - begun_s, whole=False)
                if first_failure and summary.failures:
                    break
        except KeyboardInterrupt:
            if len(numbers) == 1:
                raise
            progress.say("interrupted: what follows is about the seeds so far")
    wall_s = time.perf_counter() - begun_s
    if record is not None:
        whole = summary.done.issuperset(numbers) and not summary.owed
        write_record(record, summary, wishes, wall_s, whole=whole)
    return summary, wall_s


def _earlier(record: Path | None, wishes: Wishes) -> tuple[Summary, float]:
    """What the record of an earlier campaign says, and how long that took in seconds."""
    if record is None:
        raise click.UsageError("--resume goes on from a file: name it with --json")
    try:
        return read_record(record, wishes) if record.exists() else (Summary(), 0.0)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--resume cannot go on from {record}: {error}") from None


def _one(screen: Console, report: Report) -> None:
    if report.timeline:
        print_lines(screen, iter(report.timeline))
    if not report.failed:
        print_lines(screen, iter(["the faults:", *(f"  {line}" for line in report.plan.splitlines())]))


def _tell(screen: Console, summary: Summary, shrink_s: float) -> bool:
    """True: something is wrong."""
    for report, failing in summary.failures[:_TOLD]:
        options = replace(failing, timeline=False)
        smallest = Shrunken(options, report, 0)
        if shrink_s:
            with Console(stderr=True).status(f"seed {report.seed} fails; what of it is needed?"):
                smallest = shrink(report, options, limit_s=shrink_s, run=_guarded)
        print_lines(screen, failure_page(smallest, whole=report))
    for report, options in summary.failures[_TOLD:]:
        print_lines(screen, iter([f"also fails: {replay_command(report.seed, options)}"]))
    for earlier in summary.earlier_failures:
        print_lines(screen, iter([f"failed before: {earlier['replay']}"]))
    for number in summary.unrepeatable:
        print_lines(screen, iter([f"seed {number} does not repeat itself: two runs have different digests"]))
    return bool(summary.failures or summary.earlier_failures or summary.unrepeatable)


def _guarded(seed: int, options: Options) -> Report:
    with time_limit():
        return run_seed(seed, options)
