"""`master` and `node`: run until told to stop, and say in one line what listens where.

SIGTERM and SIGINT are how a server is stopped, no error: a node takes its memory back and leaves, and the master knows
at once; a master says farewell to everybody. Their log goes to stderr.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Awaitable, Sequence

import click

from pykvpool.cli import format as say
from pykvpool.cli.options import POOL_KEYS, configured, section
from pykvpool.cli.running import until_stopped
from pykvpool.cli.servers import describe_pool, running_master, running_node
from pykvpool.cli.supervised import Announcement, announce, end_of, standard_input
from pykvpool.config import Config
from pykvpool.errors import SessionExpired

supervised_option = click.option(
    "--supervised",
    is_flag=True,
    help="For programs that start this one: say in one JSON line on standard output where it listens, and stop when "
    "standard input ends.",
)


@click.command()
@supervised_option
@configured("pool.cluster", "pool.token", "pool.token_file", *section("master"), "log.level")
def master(config: Config, supervised: bool) -> None:
    """Run the master. It keeps no blocks, only where they are; start nodes to lend memory to the pool."""
    _log(config)

    async def serve() -> None:
        async with running_master(config) as server:
            listens = ", ".join(server.addresses)
            _started(f"master listens on {listens} ({describe_pool(config.pool)})")
            if supervised:
                announce(Announcement("master", server.addresses))
            await _until_told(supervised)

    asyncio.run(serve())


@click.command()
@supervised_option
@configured(*POOL_KEYS, *section("node"), "log.level")
def node(config: Config, supervised: bool) -> None:
    """Run a node: lend memory of this machine to the pool until it is stopped."""
    _log(config)

    async def serve() -> None:
        async with running_node(config) as running:
            mount = running.mount
            endpoints: Sequence[str] = mount.endpoints if mount is not None else ()
            lends = say.size(config.node.segment_size)
            _started(
                f"node {running.name!r} lends {lends} to {', '.join(config.pool.master)}; on {', '.join(endpoints)}"
            )
            if supervised:
                announce(Announcement("node", tuple(endpoints)))
            over = await _until_told(supervised, running.wait_over())
            if over:
                raise SessionExpired(f"node {running.name!r} on {socket.gethostname()} ended: {over}")

    asyncio.run(serve())


async def _until_told(supervised: bool, over: Awaitable[str] | None = None) -> str:
    """Wait for a signal, the end of a supervised process's input, or `over`; returns the text of `over`, else ""."""
    waits: list[asyncio.Future[str] | asyncio.Future[None]] = [asyncio.ensure_future(until_stopped())]
    if supervised:
        waits.append(asyncio.ensure_future(end_of(await standard_input())))
    ended = asyncio.ensure_future(over) if over is not None else None
    if ended is not None:
        waits.append(ended)
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return ended.result() if ended is not None and ended.done() else ""
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)


def _log(config: Config) -> None:
    level = config.log.level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)


def _started(line: str) -> None:
    """The one line of a healthy start."""
    click.echo(f"pykvpool {line}", err=True)
