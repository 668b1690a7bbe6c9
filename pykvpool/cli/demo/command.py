"""The command `pykvpool demo`: options, the choice of sessions, progress, and the verdict."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pykvpool.cli import format as say
from pykvpool.cli import screen
from pykvpool.cli.boundary import EXIT_ERROR
from pykvpool.cli.demo import traces, workload
from pykvpool.cli.demo.driver import DemoSettings, Pass, run_demo
from pykvpool.cli.demo.report import DemoSummary, render, summarise
from pykvpool.cli.demo.turns import Session, StreamPrompt, Turn, interleave
from pykvpool.cli.options import Number, debug_option, size_option
from pykvpool.cli.running import run
from pykvpool.errors import InvalidArgument

#: Sessions of the default workload: their working set is several times what one engine holds.
DEFAULT_SESSIONS = 8
#: Requests of a Mooncake trace, which knows no sessions: enough for prefixes to come back.
DEFAULT_REQUESTS = 1_000
#: Tokens per block of made-up sessions: vLLM's default on a GPU.
BLOCK_TOKENS = 16
#: Bytes of one token here. A real model has 30 to 300 KiB; with 1 KiB a whole cluster's work fits one small machine.
TOKEN_BYTES = 1_024
#: Tokens that one engine's own memory holds: one long session, as a busy GPU has room for a few among many.
ENGINE_CACHE_TOKENS = 98_304
DEFAULT_NODE_SIZE = "256MiB"


@click.command()
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Replay recorded sessions (.jsonl, .jsonl.gz, .jsonl.xz)."
)
@click.option(
    "--sessions", type=click.IntRange(1), help="How many sessions to run.  [default: 8; 1000 Mooncake requests]"
)
@click.option("--turns", type=click.IntRange(1), help="Run only the first turns of each session.")
@click.option("--engines", type=click.IntRange(1, 32), default=3, show_default=True, help="Engine processes.")
@click.option("--nodes", type=click.IntRange(1, 32), default=3, show_default=True, help="Node processes.")
@size_option("--node-size", DEFAULT_NODE_SIZE, "What each node lends.")
@click.option(
    "--engine-tokens",
    type=click.IntRange(1),
    default=ENGINE_CACHE_TOKENS,
    show_default=True,
    help="Tokens that an engine's own memory holds (at least the longest prompt).",
)
@click.option(
    "--token-bytes",
    type=click.IntRange(16, 1 << 20),
    default=TOKEN_BYTES,
    show_default=True,
    help="Bytes of one token's KV.",
)
@click.option("--fabric", "fabrics", multiple=True, help="Move bytes over this fabric only (repeatable): shm, tcp.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same turns.")
@click.option(
    "--max-seconds",
    type=Number(1),
    default=60.0,
    show_default=True,
    help="Stop both passes after about this time, at the same turns.",
)
@click.option("--kill-node", is_flag=True, help="Kill one node half way, to see what that costs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
@debug_option
def demo(
    trace: Path | None, sessions: int | None, turns: int | None, engines: int, nodes: int, node_size: int,
    engine_tokens: int, token_bytes: int, fabrics: tuple[str, ...], seed: int, max_seconds: float, kill_node: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Run agent sessions on pretended engines, first each on its own, then with a pool, and compare.

    A master, nodes and engines are started as processes of their own and ended again. Every block that an engine loads
    from the pool is compared, byte by byte, with what it must be; one wrong byte makes the exit code 1.
    """
    chosen = _choose(trace, sessions, turns, seed)
    block_tokens = chosen.block_tokens
    order = interleave(chosen.sessions, seed)
    longest = max(_blocks(turn, block_tokens) for turn in order)
    settings = DemoSettings(
        engines=engines,
        nodes=nodes,
        node_bytes=node_size,
        block_tokens=block_tokens,
        block_bytes=block_tokens * token_bytes,
        slots=max(engine_tokens // block_tokens, longest, 1),
        seed=seed,
        fabrics=fabrics,
        max_seconds=max_seconds,
        kill_node=kill_node,
    )
    if settings.block_bytes > settings.node_bytes:
        raise InvalidArgument(
            f"a block of {say.size(settings.block_bytes)} does not fit into a node of {say.size(node_size)}: "
            "raise --node-size or lower --token-bytes"
        )
    with _progress() as (announce, advance):
        outcome = run(lambda: run_demo(settings, order, announce, advance))
    summary = summarise(chosen.name, settings, order, outcome)
    _print(summary, as_json)
    if not summary.every_byte_right:
        sys.exit(EXIT_ERROR)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The sessions to run."""

    #: What to call them, for people.
    name: str
    block_tokens: int
    sessions: list[Session]


def _choose(trace: Path | None, sessions: int | None, turns: int | None, seed: int) -> _Chosen:
    if trace is None:
        made_up = workload.generate(sessions or DEFAULT_SESSIONS, seed, max_turns=turns or 0)
        return _Chosen("Made-up sessions", BLOCK_TOKENS, made_up)
    about = traces.recognise(trace)
    agentic = about.format == "agentic"
    wanted = sessions or (DEFAULT_SESSIONS if agentic else DEFAULT_REQUESTS)
    chosen = [
        Session(session.name, session.turns[:turns])
        for session in itertools.islice(traces.read_sessions(about), wanted)
    ]
    kind = "sessions" if agentic else "requests"
    return _Chosen(f"The first {len(chosen)} {kind} of {trace.name}, the rest left out", about.block_tokens, chosen)


def _blocks(turn: Turn, block_tokens: int) -> int:
    """Blocks of a turn's prompt, with its output where that is known."""
    if isinstance(turn.prompt, StreamPrompt):
        return (turn.input_tokens + turn.output_tokens) // block_tokens
    return len(turn.prompt.ids)


@contextmanager
def _progress() -> Iterator[tuple[Callable[[str], None], Callable[[Pass, int], None]]]:
    """Progress on standard error: live on a terminal, one bar for each pass with the hit rate so far; else in lines."""
    columns = (
        TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    bars: dict[bool, TaskID] = {}
    hits: dict[bool, tuple[int, int]] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        starting = progress.add_task("starting", total=None, rate="")

        def announce(text: str) -> None:
            progress.update(starting, description=text)
            if not console.is_terminal:
                click.echo(text, err=True)

        def advance(this: Pass, turns: int) -> None:
            if this.with_pool not in bars:
                progress.update(starting, visible=False)
                label = "with the pool" if this.with_pool else "engines alone"
                if not console.is_terminal:
                    click.echo(f"{label}: {turns} turns", err=True)
                bars[this.with_pool] = progress.add_task(label, total=turns, rate="")
            last = this.results[next(reversed(this.results))]
            hit, all_ = hits.get(this.with_pool, (0, 0))
            hit, all_ = hit + last.own_tokens + last.pool_tokens, all_ + last.input_tokens
            hits[this.with_pool] = (hit, all_)
            progress.update(bars[this.with_pool], completed=len(this.results), rate=f"hits {say.percent(hit, all_)}")

        yield announce, advance


def _print(summary: DemoSummary, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(summary), indent=2).decode())
    else:
        render(summary, screen.console(markup=True))
