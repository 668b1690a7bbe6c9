"""`put` and `get`: files into the pool and out of it. What was done is said on stderr; stdout is for bytes alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from pykvpool.cli import files
from pykvpool.cli import format as say
from pykvpool.cli.options import CLIENT_KEYS, configured, open_client
from pykvpool.cli.running import run
from pykvpool.client import GetResult, PutResult
from pykvpool.config import Config
from pykvpool.errors import InvalidArgument, PoolError
from pykvpool.model.objects import Pin, Vouch

#: From this size on a transfer shows its progress.
SHOWN_BYTES = 32 << 20


@click.command()
@click.argument("key")
@click.argument("file", metavar="FILE|-")
@click.option(
    "--pin",
    type=click.Choice(["none", "soft", "hard"]),
    default="none",
    show_default=True,
    help="How hard it resists eviction.",
)
@click.option("--node", default="", metavar="NAME", help="Node that should hold the first copy.")
@configured(*CLIENT_KEYS, "client.replicas", "client.min_replicas")
def put(config: Config, key: str, file: str, pin: str, node: str) -> None:
    """Store FILE (- for standard input) under KEY.

    A key that begins with 0x is binary, in hex digits. Storing the same key and size again does nothing: keys are
    names of their bytes.
    """
    result = run(lambda: _put(config, key, file, Pin[pin.upper()], node))
    key = say.shown_key(key)
    if result.existed:
        click.echo(f"{key}: {say.size(result.size_bytes)}, was there already", err=True)
        return
    copies = f"{result.replicas} {'copy' if result.replicas == 1 else 'copies'}"
    short = " (fewer than asked: degraded)" if result.degraded else ""
    click.echo(f"{key}: {say.size(result.size_bytes)} over {result.scheme}, {copies}{short}", err=True)


async def _put(config: Config, key: str, file: str, pin: Pin, node: str) -> PutResult:
    name = say.parse_key(key)
    size_bytes = files.size_of(file)
    async with await open_client(config) as client:
        with _progress("reading", size_bytes) as moved:
            data = await files.read(file, moved)
        with _progress("sending", len(data), known=False):
            return await client.put(name, data, pin=pin, preferred_node=node)


@click.command()
@click.argument("key")
@click.option("-o", "--output", default="-", metavar="FILE", help="Write here instead of to standard output.")
@configured(*CLIENT_KEYS)
def get(config: Config, key: str, output: str) -> None:
    """Fetch the object KEY to standard output, or into a file.

    Says on standard error how large it was, which fabric and node it came by, and what vouches for its bytes.
    """
    result = run(lambda: _get(config, key, output))
    vouch = "its checksum" if result.vouch is Vouch.CHECKSUM else "its lease alone"
    click.echo(
        f"{say.shown_key(key)}: {say.size(result.size_bytes)} over {result.scheme} from {result.node}, "
        f"vouched for by {vouch}",
        err=True,
    )


async def _get(config: Config, key: str, output: str) -> GetResult:
    name = say.parse_key(key)
    async with await open_client(config, role="reader") as client:
        [found] = await client.stat([name])
        if isinstance(found, PoolError):
            raise found
        data = bytearray(found.size_bytes)
        with _progress("receiving", len(data), known=False):
            result = await client.get_into(name, data)
        view = memoryview(data)[: result.size_bytes]
        if output == "-" and sys.stdout.isatty() and not _printable(view):
            raise InvalidArgument(
                f"{say.shown_key(key)} holds binary data: name a file with -o, or send it on with a pipe"
            )
        with _progress("writing", len(view)) as moved:
            await files.write(output, view, moved)
    return result


def _printable(data: memoryview) -> bool:
    """Whether a terminal survives its beginning."""
    try:
        text = bytes(data[:1024]).decode("utf-8", "strict" if len(data) <= 1024 else "ignore")
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\n\r\t" for character in text)


class _Speed(ProgressColumn):
    """How fast it goes, in the units of everything else here."""

    def render(self, task: Task) -> Text:
        return Text(say.rate(task.speed) if task.speed else "")


@contextmanager
def _progress(verb: str, size_bytes: int | None, known: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's stderr for what takes a while. `known`: the steps on the way are reported."""
    console = Console(stderr=True)
    shown = console.is_terminal and (size_bytes is None or size_bytes >= SHOWN_BYTES)
    columns = (TextColumn(f"{verb:<10}"), BarColumn(), DownloadColumn(binary_units=True), _Speed())
    with Progress(*columns, console=console, disable=not shown, transient=True) as progress:
        task = progress.add_task(verb, total=size_bytes if known else None)
        yield lambda moved: progress.update(task, completed=moved)
