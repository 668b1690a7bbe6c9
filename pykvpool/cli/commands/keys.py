"""`ls`, `stat` and `rm`: questions about objects, and their removal."""

from __future__ import annotations

from typing import TypeVar

import click
import msgspec
from rich.table import Table

from pykvpool.cli import format as say
from pykvpool.cli import screen
from pykvpool.cli.boundary import EXIT_ERROR, next_step
from pykvpool.cli.options import POOL_KEYS, configured, open_client
from pykvpool.cli.running import run
from pykvpool.client import Client, ListedKey
from pykvpool.config import Config
from pykvpool.errors import PoolError
from pykvpool.model.keys import key_text
from pykvpool.model.replies import ObjectStat

T = TypeVar("T")

KEYS = (*POOL_KEYS, "client.namespace", "client.timeout_s")


@click.command()
@click.argument("pattern", default="*")
@click.option("--all-namespaces", is_flag=True, help="List every namespace, and name it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@configured(*KEYS)
def ls(config: Config, pattern: str, all_namespaces: bool, as_json: bool) -> None:
    """List keys that match the shell pattern PATTERN (default: all), with their sizes.

    A binary key is shown, and may be given to other commands, as 0x and hex digits.
    """

    def show(listed: ListedKey) -> None:
        key = key_text(listed.key)
        if as_json:
            line = msgspec.json.encode({"namespace": listed.namespace, "key": key, "size_bytes": listed.size_bytes})
            click.echo(line)
        elif all_namespaces:
            click.echo(f"{say.size(listed.size_bytes):>12}  {listed.namespace}  {key}")
        else:
            click.echo(f"{say.size(listed.size_bytes):>12}  {key}")

    async def list_all() -> None:
        async with await open_client(config, role="reader") as client:
            async for listed in client.list_keys(pattern, namespace="" if all_namespaces else None):
                show(listed)

    run(list_all)


@click.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@configured(*KEYS)
def stat(config: Config, keys: tuple[str, ...], as_json: bool) -> None:
    """What the master knows about objects: size, checksum, leases, pins, place in their chain, and where they are."""
    names = [say.parse_key(key) for key in keys]

    async def ask() -> list[tuple[str, ObjectStat, list[str]] | PoolError]:
        async with await open_client(config, role="reader") as client:
            found = await client.stat(names)
            return [
                answer if isinstance(answer, PoolError) else (key, answer, _places(client, answer))
                for key, answer in zip(keys, found, strict=True)
            ]

    console = screen.console()
    answers = run(ask)
    for answer in answers:
        if isinstance(answer, PoolError):
            click.echo(f"pykvpool: {answer.kind}: {answer}", err=True)
        elif as_json:
            click.echo(msgspec.json.encode(_as_json(*answer)))
        else:
            console.print(_table(*answer))
    _fail_with(answers)


def _places(client: Client, found: ObjectStat) -> list[str]:
    """Where each replica is, for people."""
    return [
        f"{client.node_of(extent.segment) or 'a node that left'}, segment {extent.segment}, "
        f"bytes {say.count(extent.offset)} to {say.count(extent.offset + extent.length)}"
        for extent in found.extents
    ]


def _as_json(key: str, found: ObjectStat, places: list[str]) -> dict[str, object]:
    return {
        "key": say.shown_key(key),
        "size_bytes": found.size_bytes,
        "checksum": None if found.checksum is None else f"{found.checksum:016x}",
        "pin": found.pin.name.lower(),
        "leases": found.leases,
        "depth": found.depth,
        "orphan": found.orphan,
        "idle_ms": found.idle_ms,
        "put_id": found.put_id,
        "replicas": places,
    }


def _table(key: str, found: ObjectStat, places: list[str]) -> Table:
    table = Table(title=say.shown_key(key), title_justify="left", show_header=False)
    exact = f" ({say.counted(found.size_bytes, 'byte')})" if found.size_bytes >= 1024 else ""
    table.add_row("size", say.size(found.size_bytes) + exact)
    table.add_row("checksum", "not known yet" if found.checksum is None else f"xxh3-64 {found.checksum:016x}")
    table.add_row("pin", found.pin.name.lower())
    table.add_row("leases", str(found.leases))
    orphan = ", an orphan: the block before it is gone" if found.orphan else ""
    table.add_row("depth in its chain", f"{found.depth}{orphan}")
    table.add_row("last used", f"{say.duration(found.idle_ms / 1000)} ago")
    for number, place in enumerate(places):
        table.add_row(f"replica {number}", place)
    return table


@click.command()
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@click.option("--pattern", metavar="PATTERN", help="Remove every key that matches this shell pattern.")
@click.option("--all", "everything", is_flag=True, help="Remove every key of the namespace.")
@click.option("--all-namespaces", is_flag=True, help="With --pattern or --all: in every namespace.")
@click.option("--force", is_flag=True, help="Also objects that are being read or are hard pinned.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@configured(*KEYS)
def rm(
    config: Config, keys: tuple[str, ...], pattern: str | None, everything: bool, all_namespaces: bool, force: bool,
    yes: bool,
) -> None:  # fmt: skip
    """Remove objects: the KEYs named, those that match a pattern, or all of a namespace.

    Leased and hard-pinned objects stay unless --force is given; their bytes go when the last reader is done.
    """
    if sum((bool(keys), pattern is not None, everything)) != 1:
        raise click.UsageError("name KEYs, or give --pattern or --all: one of the three")
    if pattern == "":  # an unset variable of a script, most likely
        raise click.UsageError("the pattern is empty and matches no key: --all removes every object")
    if all_namespaces and keys:
        raise click.UsageError("--all-namespaces goes with --pattern or --all")
    if keys:
        _remove_keys(config, keys, force)
        return
    where = "every namespace" if all_namespaces else f"namespace {config.client.namespace!r}"
    if everything and not yes:
        click.confirm(f"Remove every object of {where}?", abort=True, err=True)

    async def remove() -> None:
        async with await open_client(config) as client:
            removed = await client.remove_all(pattern or "*", namespace="" if all_namespaces else None, force=force)
        kept = f", {say.count(removed.kept)} kept (leased or hard pinned: --force)" if removed.kept else ""
        click.echo(f"removed {say.counted(removed.count, 'object')}{kept}", err=True)

    run(remove)


def _remove_keys(config: Config, keys: tuple[str, ...], force: bool) -> None:
    names = [say.parse_key(key) for key in keys]

    async def remove() -> list[PoolError | None]:
        async with await open_client(config) as client:
            return await client.remove_batch(names, force=force)

    errors = run(remove)
    for error in errors:
        if error is not None:
            click.echo(f"pykvpool: {error.kind}: {error}", err=True)
    removed = sum(error is None for error in errors)
    if removed:
        click.echo(f"removed {say.counted(removed, 'object')}", err=True)
    _fail_with(errors)


def _fail_with(answers: list[T | PoolError]) -> None:
    """End with exit code 1, and one piece of advice, where any key failed."""
    failed = [answer for answer in answers if isinstance(answer, PoolError)]
    if failed:
        if hint := next_step(failed[0]):
            click.echo(f"  {hint}", err=True)
        raise click.exceptions.Exit(EXIT_ERROR)
