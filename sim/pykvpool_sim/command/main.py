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
from pykvpool_sim.command.pages import failure_page, print_lines, replay_command, summary_page
from pykvpool_sim.command.shrink import shrink

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
    "--chaos-s", type=click.FloatRange(1, 3_600), default=CHAOS_MS / 1_000, show_default=True,
    help="Virtual seconds of trouble in each run.",
)  # fmt: skip
@click.option(
    "--off", metavar="LIST", callback=_names(PROMISES), help="Do not judge these promises: what would go unseen?"
)
@click.option("--trace", is_flag=True, help="Print all that happened (with --seed).")
@click.option("--twice", is_flag=True, help="Run each seed twice: equal digests?")
@click.option("--compare", is_flag=True, help="Run each seed again without one of its kinds of faults: any difference?")
@click.option("--shrink/--no-shrink", "smaller", default=True, help="Look for the faults that a failure needs.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes.  [default: one per core]")
def sim(
    seed: int | None,
    seeds: int | None,
    first: int,
    only: tuple[str, ...],
    without: str,
    keep: tuple[int, ...] | None,
    chaos_s: float,
    off: tuple[str, ...],
    trace: bool,
    twice: bool,
    compare: bool,
    smaller: bool,
    jobs: int | None,
) -> None:
    """Run the whole pool in simulated time, with every fault there is, and judge every promise.

    Exit code 1 where one is broken; then it says which, the faults that it takes, the story of the object, and the
    command that replays it.
    """
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed is one, --seeds are many: give either")
    if trace and seed is None:
        raise click.UsageError("--trace prints one run: name it with --seed")
    options = Options(only, without, keep, round(chaos_s * 1_000), frozenset(off), timeline=trace)
    screen = console()
    if seed is not None:
        failed = _one(screen, seed, options, twice=twice, compare=compare, smaller=smaller)
    else:
        numbers = range(first, first + (seeds or 100))
        tasks = [Task(number, options, twice, compare) for number in numbers]
        failed = _many(screen, tasks, jobs or os.cpu_count() or 1, smaller=smaller)
    if failed:
        raise click.exceptions.Exit(1)


def _one(screen: Console, seed: int, options: Options, *, twice: bool, compare: bool, smaller: bool) -> bool:
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
    return _tell(screen, summary, [result.report], options, smaller=smaller)


def _many(screen: Console, tasks: list[Task], jobs: int, *, smaller: bool) -> bool:
    summary, failures = Summary(), list[Report]()
    begun_s = time.perf_counter()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("seeds", total=len(tasks))
        for result in run_all(tasks, min(jobs, len(tasks))):
            summary.add(result)
            if result.report.failed:
                failures.append(result.report)
            progress.update(bar, advance=1, description=f"seeds, {len(failures)} failed")
    screen.print(summary_page(summary, time.perf_counter() - begun_s))
    return _tell(screen, summary, failures, tasks[0].options, smaller=smaller)


def _tell(screen: Console, summary: Summary, reports: list[Report], options: Options, *, smaller: bool) -> bool:
    """True: something is wrong."""
    options = replace(options, timeline=False)
    for report in [report for report in reports if report.failed][:_TOLD]:
        if smaller and report.planned:
            fewer = shrink(report.seed, options, report)
            shrunken = run_seed(report.seed, fewer)
            if shrunken.failed:
                print_lines(screen, failure_page(shrunken, fewer))
                continue
        print_lines(screen, failure_page(report, options))
    for number in summary.failed[_TOLD:]:
        print_lines(screen, iter([f"also fails: {replay_command(number, options)}"]))
    for number in summary.unrepeatable:
        print_lines(screen, iter([f"seed {number} does not repeat itself: two runs have different digests"]))
    return bool(summary.failed or summary.unrepeatable)
