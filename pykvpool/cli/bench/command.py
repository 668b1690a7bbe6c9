"""The command `pykvpool bench`: starts what is needed, shows progress, prints the figures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pykvpool.cli import screen
from pykvpool.cli.bench.cases import ALL_FABRICS, Plan, full_plan, quick_plan, transfers_only
from pykvpool.cli.bench.report import render
from pykvpool.cli.bench.results import Figures
from pykvpool.cli.bench.worker import OTHER_NODE, Job, Said
from pykvpool.cli.options import debug_option
from pykvpool.cli.processes import Children
from pykvpool.cli.running import run
from pykvpool.errors import from_code
from pykvpool.fabric.rdma.rails import require_verbs
from pykvpool.fabric.rdma.settings import DEFAULT_SETTINGS


@click.command()
@click.option("--quick", is_flag=True, help="A third of the cases, in about twenty seconds.")
@click.option(
    "--fabric", "fabrics", multiple=True, type=click.Choice(ALL_FABRICS),
    help="Measure transfers over this one only. Repeat it for several. rdma needs a device, and perftest.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 1000), help="With --fabric: exactly so many rounds.")
@click.option("--rdma-device", default="", metavar="NAME", help="RDMA device of the client. Any, unless named.")
@click.option("--rdma-node-device", default="", metavar="NAME", help="RDMA device of the node. That of the client.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON, and nothing else.")
@debug_option
def bench(
    quick: bool, fabrics: tuple[str, ...], rounds: int | None, rdma_device: str, rdma_node_device: str, as_json: bool
) -> None:
    """Measure puts, gets and lookups beside the bare machine, on processes of its own (about two minutes).

    Every figure comes with its ratio to what this machine did in the same round without the pool: copying memory
    (for inproc and shm), receiving over loopback TCP (for tcp), ib_write_bw and ib_read_bw (for rdma).
    """
    make = quick_plan if quick else full_plan
    plan = transfers_only(make(tuple(dict.fromkeys(fabrics))), rounds) if fabrics else make()
    plan = msgspec.structs.replace(plan, rdma_device=rdma_device, rdma_node_device=rdma_node_device or rdma_device)
    if "rdma" in plan.fabrics:
        require_verbs(DEFAULT_SETTINGS)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<32}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("starting", total=None)

        def show(said: Said) -> None:
            progress.update(bar, description=said.what, completed=said.done, total=said.steps)

        figures = run(lambda: measure(plan, show))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(figures), indent=2))
    else:
        render(figures, screen.console())


async def measure(plan: Plan, show: Callable[[Said], None]) -> Figures:
    """Start a master, a node and the worker; return the worker's figures. Raises its error."""
    with tempfile.TemporaryDirectory(prefix="pykvpool-bench-") as sockets:
        async with Children() as children:
            return await _measure(children, sockets, plan, show)


async def _measure(children: Children, sockets: str, plan: Plan, show: Callable[[Said], None]) -> Figures:
    master = await children.start("master", "pykvpool", "master", "--supervised", "--listen", "tcp://127.0.0.1:0")
    masters = (await master.announcement()).addresses
    node = await children.start(
        "node", "pykvpool", "node", "--supervised", "--name", OTHER_NODE, "--master", masters[0],
        "--segment-size", str(plan.segment_bytes), "--shm-dir", sockets, *_node_options(plan),
    )  # fmt: skip
    await node.announcement()
    worker = await children.start("bench worker", "pykvpool.cli.bench.worker")
    worker.stdin.write(msgspec.json.encode(Job(masters, plan)) + b"\n")
    await worker.stdin.drain()
    while line := await worker.stdout.readline():
        said = msgspec.json.decode(line, type=Said)
        if said.error:
            raise from_code(said.error_code, said.error)
        if said.figures is not None:
            return said.figures
        show(said)
    raise await worker.failure("gave no figures")


def _node_options(plan: Plan) -> list[str]:
    """How the node is to be reached, where that is not as usual."""
    if "rdma" not in plan.fabrics:
        return []
    device = ["--rdma-device", plan.rdma_node_device] if plan.rdma_node_device else []
    return ["--fabric", "shm", "--fabric", "tcp", "--fabric", "rdma", *device]
