"""The click command. It joins `pykvpool` through the entry-point group `pykvpool.commands`; ``python -m pykvpool_sim``
is the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import click
from rich.console import Console
from rich.progress import Progress

from pykvpool.cli.screen import console
from pykvpool_sim.cluster import Options, Report, run_seed
from pykvpool_sim.cluster.run import CHAOS_MS
from pykvpool_sim.cluster.troubles import KINDS
from pykvpool_sim.command.campaign import Summary, Task, run_all, work
from pykvpool_sim.command.guard import time_limit
from pykvpool_sim.command.pages import failure_page, print_lines, replay_command, summary_page
from pykvpool_sim.command.shrink import LIMIT_S, Shrunken, shrink
from pykvpool_sim.command.words import read_tape, read_turns

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


@click.command()
@click.option("--seed", type=click.IntRange(min=0), help="Simulate this one.")
@click.option("--seeds", type=click.IntRange(min=1), help="Simulate so many seeds, from --first on.  [default: 100]")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="First of --seeds.")
@click.option("--faults", "only", metavar="LIST", callback=_names(KINDS), help="Only these kinds of faults.")
@click.option(
    "--without", default="", type=click.Choice(("", *KINDS)), help="Leave out one kind; all else is as it was."
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
@click.option("--twice", is_flag=True, help="Run each seed twice: equal digests?")
@click.option("--compare", is_flag=True, help="Run each seed again without one of its kinds of faults: any difference?")
@click.option("--shrink/--no-shrink", "smaller", default=True, help="Look for what a failure needs, and no more.")
@click.option(
    "--shrink-s", type=click.FloatRange(0), default=LIMIT_S, show_default=True, help="Seconds spent on that, for each."
)
@click.option("--first-failure", "first_failure", is_flag=True, help="End with the first seed that fails.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes.  [default: one per core]")
def sim(
    seed: int | None,
    seeds: int | None,
    first: int,
    only: tuple[str, ...],
    without: str,
    keep: tuple[int, ...] | None,
    hosts: tuple[str, ...] | None,
    turns: frozenset[str] | None,
    tape: bytes | None,
    chaos_s: float,
    off: tuple[str, ...],
    trace: bool,
    twice: bool,
    compare: bool,
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
    options = Options(only, without, keep, hosts, turns, tape, round(chaos_s * 1_000), frozenset(off), timeline=trace)
    shrink_s = shrink_s if smaller else 0.0
    screen = console()
    if seed is not None:
        failed = _one(screen, seed, options, twice=twice, compare=compare, shrink_s=shrink_s)
    else:
        numbers = range(first, first + (seeds or 100))
        tasks = [Task(number, options, twice, compare) for number in numbers]
        failed = _many(screen, tasks, jobs or os.cpu_count() or 1, shrink_s, first_failure=first_failure)
    if failed:
        raise click.exceptions.Exit(1)


def _one(screen: Console, seed: int, options: Options, *, twice: bool, compare: bool, shrink_s: float) -> bool:
    begun_s = time.perf_counter()
    result = work(Task(seed, options, twice, compare))
    if options.timeline:
        print_lines(screen, iter(result.report.timeline))
    summary = Summary()
    summary.add(result)
    if not result.report.failed:
        print_lines(screen, iter(["the faults:", *(f"  {line}" for line in result.report.plan.splitlines())]))
        screen.print(summary_page(summary, time.perf_counter() - begun_s))
        print_lines(screen, iter([f"digest {result.report.digest}"]))
    return _tell(screen, summary, [result.report], options, shrink_s)


def _many(screen: Console, tasks: list[Task], jobs: int, shrink_s: float, *, first_failure: bool) -> bool:
    summary, failures = Summary(), list[Report]()
    begun_s = time.perf_counter()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("seeds", total=len(tasks))
        for result in run_all(tasks, min(jobs, len(tasks))):
            summary.add(result)
            if result.report.failed:
                failures.append(result.report)
            progress.update(bar, advance=1, description=f"seeds, {len(failures)} failed")
            if failures and first_failure:
                break
    screen.print(summary_page(summary, time.perf_counter() - begun_s))
    return _tell(screen, summary, failures, tasks[0].options, shrink_s)


def _tell(screen: Console, summary: Summary, reports: list[Report], options: Options, shrink_s: float) -> bool:
    """True: something is wrong."""
    options = replace(options, timeline=False)
    for report in [report for report in reports if report.failed][:_TOLD]:
        smallest = Shrunken(options, report, 0)
        if shrink_s:
            with Console(stderr=True).status(f"seed {report.seed} fails; what of it is needed?"):
                smallest = shrink(report, options, limit_s=shrink_s, run=_guarded)
        print_lines(screen, failure_page(smallest, whole=report))
    for number in summary.failed[_TOLD:]:
        print_lines(screen, iter([f"also fails: {replay_command(number, options)}"]))
    for number in summary.unrepeatable:
        print_lines(screen, iter([f"seed {number} does not repeat itself: two runs have different digests"]))
    return bool(summary.failed or summary.unrepeatable)


def _guarded(seed: int, options: Options) -> Report:
    with time_limit():
        return run_seed(seed, options)
