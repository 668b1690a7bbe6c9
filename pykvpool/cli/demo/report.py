"""What the two passes came to, as data (`summarise`) and as tables (`render`); both show the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from rich.console import Console
from rich.table import Table

from pykvpool.cli import format as say
from pykvpool.cli.demo.driver import DemoOutcome, DemoSettings, Pass
from pykvpool.cli.demo.turns import Turn

#: KV of one token in a common model, for scale: Llama 3.1 8B, 32 layers x 8 KV heads x 128 x (K and V) x 2 bytes.
LLAMA_8B_TOKEN_BYTES = 131_072


class PassSummary(msgspec.Struct, frozen=True):
    """One pass over all turns. Hit rates are parts of the prompts' tokens."""

    input_tokens: int
    own_hit_tokens: int
    pool_hit_tokens: int
    computed_tokens: int
    hit_rate: float
    #: Of the whole pass. It compares nothing: what is "computed" here costs no time.
    seconds: float
    loaded_bytes: int
    saved_bytes: int
    #: Bytes over the time that engines spent loading (saving), one engine's share; not over the whole pass.
    load_bytes_per_s: float
    save_bytes_per_s: float
    lookups: int
    lookup_p50_s: float
    lookup_p99_s: float
    #: Loaded bytes that were compared with what they must be, and blocks that were not so.
    verified_bytes: int
    wrong_blocks: int
    #: Kind of the error -> blocks.
    not_loaded: dict[str, int]
    not_saved: dict[str, int]
    fabric_bytes: dict[str, int]


class DemoSummary(msgspec.Struct, frozen=True):
    """What ``--json`` prints."""

    workload: str
    seed: int
    sessions: int
    turns: int
    sub_agent_turns: int
    #: Turns of the chosen sessions that were not run because the time was over.
    turns_left_out: int
    engines: int
    nodes: int
    node_bytes: int
    block_tokens: int
    block_bytes: int
    engine_cache_tokens: int
    engines_alone: PassSummary
    with_pool: PassSummary
    pool_objects: int
    pool_bytes: int
    pool_evicted_objects: int
    #: Node that was killed half way, "" for none.
    killed_node: str

    @property
    def every_byte_right(self) -> bool:
        return self.with_pool.wrong_blocks == 0 and self.with_pool.verified_bytes == self.with_pool.loaded_bytes


def summarise(workload: str, settings: DemoSettings, turns: list[Turn], outcome: DemoOutcome) -> DemoSummary:
    """Add everything up. `turns` are all that were to be run, in their order."""
    ran = [turns[number] for number in outcome.pooled.results]
    return DemoSummary(
        workload=workload,
        seed=settings.seed,
        sessions=len({turn.session for turn in ran}),
        turns=len(ran),
        sub_agent_turns=sum(bool(turn.agent) for turn in ran),
        turns_left_out=len(turns) - len(ran),
        engines=settings.engines,
        nodes=settings.nodes,
        node_bytes=settings.node_bytes,
        block_tokens=settings.block_tokens,
        block_bytes=settings.block_bytes,
        engine_cache_tokens=settings.slots * settings.block_tokens,
        engines_alone=summarise_pass(outcome.alone),
        with_pool=summarise_pass(outcome.pooled),
        pool_objects=outcome.state.objects,
        pool_bytes=outcome.state.object_bytes,
        pool_evicted_objects=outcome.state.counters.get("objects_evicted_total", 0),
        killed_node=outcome.killed_node,
    )


def summarise_pass(this: Pass) -> PassSummary:
    """Add up one pass."""
    results = list(this.results.values())
    input_tokens = sum(r.input_tokens for r in results)
    own, pool = sum(r.own_tokens for r in results), sum(r.pool_tokens for r in results)
    loaded, saved = sum(r.loaded_bytes for r in results), sum(r.saved_bytes for r in results)
    load_s, save_s = sum(r.load_s for r in results), sum(r.save_s for r in results)
    lookups = [r.lookup_s for r in results if r.lookup_s]
    return PassSummary(
        input_tokens=input_tokens,
        own_hit_tokens=own,
        pool_hit_tokens=pool,
        computed_tokens=input_tokens - own - pool,
        hit_rate=(own + pool) / input_tokens if input_tokens else 0.0,
        seconds=this.seconds,
        loaded_bytes=loaded,
        saved_bytes=saved,
        load_bytes_per_s=loaded / load_s if load_s else 0.0,
        save_bytes_per_s=saved / save_s if save_s else 0.0,
        lookups=len(lookups),
        lookup_p50_s=quantile(lookups, 50),
        lookup_p99_s=quantile(lookups, 99),
        verified_bytes=sum(r.verified_bytes for r in results),
        wrong_blocks=sum(r.wrong_blocks for r in results),
        not_loaded=_merge(r.not_loaded for r in results),
        not_saved=_merge(r.not_saved for r in results),
        fabric_bytes=_merge(r.fabric_bytes for r in results),
    )


def quantile(values: list[float], percent: int) -> float:
    """The smallest of `values` that at least `percent` % of them do not exceed; 0 where there are none."""
    if not values:
        return 0.0
    return sorted(values)[max(0, -(-percent * len(values) // 100) - 1)]


def _merge(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    merged: dict[str, int] = {}
    for each in counts:
        for name, number in each.items():
            merged[name] = merged.get(name, 0) + number
    return merged


def render(summary: DemoSummary, console: Console) -> None:
    """Print the tables for people."""
    alone, pooled = summary.engines_alone, summary.with_pool
    table = Table(title="The same turns twice", title_justify="left")
    for heading in ("", "engines alone", "with the pool"):
        table.add_column(heading, justify="right" if heading else "left")

    def row(label: str, value: Callable[[PassSummary], str]) -> None:
        table.add_row(label, value(alone), value(pooled))

    def part(tokens: Callable[[PassSummary], int]) -> Callable[[PassSummary], str]:
        return lambda this: f"{say.count(tokens(this))} ({say.percent(tokens(this), this.input_tokens)})"

    row("prompt tokens", lambda this: say.count(this.input_tokens))
    row("  from the engine's own memory", part(lambda this: this.own_hit_tokens))
    row("  from the pool", part(lambda this: this.pool_hit_tokens))
    row("  computed", part(lambda this: this.computed_tokens))
    row("[bold]hit rate[/bold]", lambda this: f"[bold]{say.percent(this.hit_rate, 1)}[/bold]")
    console.print(table)

    moved = Table(title="What the pool did", title_justify="left", show_header=False)
    moved.add_column()
    moved.add_column(justify="right")
    moved.add_row("loaded", f"{say.size(pooled.loaded_bytes)} at {say.rate(pooled.load_bytes_per_s)} per engine")
    moved.add_row("saved", f"{say.size(pooled.saved_bytes)} at {say.rate(pooled.save_bytes_per_s)} per engine")
    moved.add_row(
        "lookups", f"{say.count(pooled.lookups)}, p50 {say.duration(pooled.lookup_p50_s)}, "
        f"p99 {say.duration(pooled.lookup_p99_s)}",
    )  # fmt: skip
    by_fabric = sorted(pooled.fabric_bytes.items())
    moved.add_row("fabrics", ", ".join(f"{name} {say.size(moved_)}" for name, moved_ in by_fabric) or "none")
    moved.add_row("in the pool at the end", f"{blocks(summary.pool_objects)}, {say.size(summary.pool_bytes)}")
    moved.add_row("evicted", blocks(summary.pool_evicted_objects))
    for label, counts in (("not loaded (computed)", pooled.not_loaded), ("not saved", pooled.not_saved)):
        for kind, number in sorted(counts.items()):
            moved.add_row(f"{label}: {kind}", blocks(number))
    verdict = "[green]none wrong[/green]" if summary.every_byte_right else "[red]WRONG[/red]"
    if pooled.wrong_blocks:
        verdict = f"[red]{blocks(pooled.wrong_blocks)} WRONG[/red]"
    moved.add_row("bytes compared after loading", f"{say.count(pooled.verified_bytes)}, {verdict}")
    console.print(moved)
    for line in explanations(summary):
        console.print(line, highlight=False)


def blocks(number: int) -> str:
    """``1 block``, ``2,000 blocks``."""
    return say.counted(number, "block")


def explanations(summary: DemoSummary) -> list[str]:
    """What the numbers stand for, and what was left out."""
    scale = LLAMA_8B_TOKEN_BYTES * summary.block_tokens / summary.block_bytes
    lines = [
        f"{summary.workload}: {say.counted(summary.sessions, 'session')}, {say.counted(summary.turns, 'turn')}, "
        f"{say.count(summary.sub_agent_turns)} of them by sub-agents; seed {summary.seed}.",
        f"{say.counted(summary.engines, 'engine')} with room for {say.count(summary.engine_cache_tokens)} tokens each, "
        f"turns go round robin; memory lent: {say.counted(summary.nodes, 'node')} of {say.size(summary.node_bytes)}.",
        f"A block of {summary.block_tokens} tokens has {say.size(summary.block_bytes)} here, 1/{scale:.0f} of the KV "
        "of Llama 3.1 8B: so that it fits one small machine.",
    ]
    if summary.killed_node:
        lines.append(
            f"{summary.killed_node} was killed half way: what it alone held was computed again, the rest went on."
        )
    if summary.pool_evicted_objects:
        lines.append(
            "The pool was full and evicted blocks: a larger --node-size or a smaller --token-bytes makes it hold more."
        )
    if summary.turns_left_out:
        left_out = say.counted(summary.turns_left_out, "turn")
        lines.append(f"Left out: {left_out}, because the time was over (--max-seconds).")
    return lines
