"""The `pykvpool` command: a table of subcommands, none of which is imported before it is called.

`pykvpool --help` must not wait for asyncio, rich or a plug-in, so the table holds one line of help for each command.
Further commands join through the entry-point group `pykvpool.commands` (name -> a click command); a name of our own
wins, and a plug-in that does not load costs only its own command. What happens to errors is in `boundary`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import click

from pykvpool import __version__
from pykvpool.cli.boundary import EXIT_ERROR, Boundary
from pykvpool.cli.standard_streams import reopen_closed
from pykvpool.errors import ConfigError

#: Entry points of this group are further commands.
ENTRY_POINT_GROUP = "pykvpool.commands"


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command lives, and its line in the help."""

    module: str
    attribute: str
    help: str


#: In the order of the help: run the pool, use it, look at it, measure it.
COMMANDS: dict[str, Lazy] = {
    "master": Lazy("pykvpool.cli.commands.serve", "master", "Run the master: it knows which blocks are where."),
    "node": Lazy("pykvpool.cli.commands.serve", "node", "Run a node: it lends memory to the pool."),
    "pool": Lazy("pykvpool.cli.commands.serve", "pool", "Run both in one process: a whole pool on this host."),
    "put": Lazy("pykvpool.cli.commands.objects", "put", "Store a file, or standard input, under a key."),
    "get": Lazy("pykvpool.cli.commands.objects", "get", "Fetch an object to standard output or into a file."),
    "ls": Lazy("pykvpool.cli.commands.keys", "ls", "List keys."),
    "stat": Lazy("pykvpool.cli.commands.keys", "stat", "What the master knows about objects."),
    "rm": Lazy("pykvpool.cli.commands.keys", "rm", "Remove objects: by key, by pattern, or all."),
    "status": Lazy("pykvpool.cli.commands.cluster", "status", "Nodes, space, sessions and counters."),
    "top": Lazy("pykvpool.cli.commands.cluster", "top", "The same, live."),
    "config": Lazy(
        "pykvpool.cli.commands.about", "config", "The configuration in force, and where each value is from."
    ),
    "doctor": Lazy("pykvpool.cli.doctor.command", "doctor", "What will work on this host, and the fix for what won't."),
    "demo": Lazy("pykvpool.cli.demo.command", "demo", "Agent sessions with and without the pool, every byte checked."),
    "bench": Lazy("pykvpool.cli.bench.command", "bench", "Measure the pool beside the bare machine."),
    "version": Lazy("pykvpool.cli.commands.about", "version", "Versions of pykvpool and of what it runs on."),
}


class PoolGroup(Boundary, click.Group):
    """The root of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(point.name for point in self._plug_ins())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = COMMANDS.get(cmd_name)
        if lazy is not None:
            found = getattr(importlib.import_module(lazy.module), lazy.attribute)
            return _checked(found, cmd_name)
        for point in self._plug_ins():
            if point.name == cmd_name:
                return _checked(_load(point), cmd_name)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])
        plug_ins = [
            (point.name, f"From {point.dist.name if point.dist else point.value}.") for point in self._plug_ins()
        ]
        if plug_ins:
            with formatter.section("Further commands"):
                formatter.write_dl(plug_ins)

    @staticmethod
    def _plug_ins() -> Iterable[EntryPoint]:
        found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name not in COMMANDS}
        return [found[name] for name in sorted(found)]


def _load(point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as error:
        owner = point.dist.name if point.dist else point.value
        raise ConfigError(
            f"the command {point.name!r} of {owner} does not load ({type(error).__name__}: {error}): "
            f"update or uninstall {owner}"
        ) from error


def _checked(found: object, name: str) -> click.Command:
    if not isinstance(found, click.Command):
        raise ConfigError(f"the command {name!r} is a {type(found).__name__}, not a click command")
    return found


@click.group(
    cls=PoolGroup,
    name="pykvpool",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Each command explains itself: pykvpool COMMAND --help. Try pykvpool demo first.",
)
@click.version_option(__version__, prog_name="pykvpool")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """pykvpool: a pool of KV-cache blocks for LLM inference, shared by every engine of a cluster."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (0 fine, 1 an error, 2 wrong usage, 130 interrupted)."""
    reopen_closed()
    try:
        cli.main(args=list(arguments) if arguments is not None else None, prog_name="pykvpool")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_ERROR
    except OSError as error:  # help or a version that found no room; what commands raise ends in `boundary`
        click.echo(f"pykvpool: {error.strerror or error}", err=True)
        return EXIT_ERROR
