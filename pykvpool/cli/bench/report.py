"""The figures of a run as tables."""

from __future__ import annotations

from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table

from pykvpool.cli import format as say
from pykvpool.cli.bench.cases import Transfer
from pykvpool.cli.bench.results import YARDSTICKS, Figures

MEANINGS = {
    "memcpy": "memcpy of one core, beyond its caches",
    "loopback": "asyncio BufferedProtocol, loopback TCP from another process",
    "ib_write_bw": "RDMA writes from C",
    "ib_read_bw": "RDMA reads from C",
}


def render(figures: Figures, console: Console) -> None:
    """Print everything."""
    raw = Table("the bare machine", "rate", "raw of", box=box.SIMPLE_HEAD)
    for name, rate in figures.raw.items():
        tool, _, size = name.partition(" ")
        fabrics = ", ".join(fabric for fabric, yardsticks in YARDSTICKS.items() if tool in yardsticks)
        of_size = f" of {say.size(int(size))}" if size else ""
        raw.add_row(f"{tool}: {MEANINGS[tool]}{of_size}", say.rate(rate), fabrics)
    console.print(raw)

    table = Table(title="Moving blocks", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("fabric", "one call moves", "put", "of raw", "one call", "get", "of raw", "one call"):
        justify: Literal["left", "right"] = "left" if heading in ("fabric", "one call moves") else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for figure in figures.transfers:
        table.add_row(
            figure.case.fabric,
            describe(figure.case),
            say.rate(figure.put_bytes_per_s),
            ratio(figure.put_ratio),
            say.duration(figure.put_call_s),
            say.rate(figure.get_bytes_per_s),
            ratio(figure.get_ratio),
            say.duration(figure.get_call_s),
        )
    console.print(table)

    asked = Table(title="Asking the master", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("", "one call", "rate"):
        asked.add_column(heading, justify="right" if heading else "left")
    for question in figures.controls:
        scopes = f" in {question.case.scopes} scopes" if question.case.scopes > 1 else ""
        asked.add_row(
            f"{question.case.verb} of {say.count(question.case.hashes)} hashes{scopes}",
            say.duration(question.call_s),
            f"{say.count(question.keys_per_s)} keys/s",
        )
    for put in figures.put_rates:
        asked.add_row(
            f"put of {say.count(put.case.batch)} x {say.size(put.case.object_bytes)} over {put.case.fabric}",
            say.duration(put.call_s),
            f"{say.count(put.objects_per_s)} objects/s",
        )
    if figures.controls or figures.put_rates:
        console.print(asked)
    console.print(
        f"Medians of {figures.rounds} rounds in {figures.seconds:.0f} s on {figures.processors} processors, Python "
        f"{figures.python}, checksums on. Ratios are to the raw figure of the same round.",
        highlight=False,
    )


def describe(case: Transfer) -> str:
    pieces = f" of {case.pieces} pieces of {say.size(case.piece_bytes)}" if case.pieces > 1 else ""
    return f"{case.batch} x {say.size(case.object_bytes)}{pieces}"


def ratio(part: float) -> str:
    """Two digits that say something."""
    return f"{part:.2f}" if part >= 0.1 else f"{part:.3f}"
