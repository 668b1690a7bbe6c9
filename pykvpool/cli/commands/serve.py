"""`master`, `node`, and `pool` (both in one process): run until told to stop, and say in one line what listens where.

SIGTERM and SIGINT are how a server is stopped, no error: a node takes its memory back and leaves, and the master knows
at once; a master says farewell to everybody. Their log goes to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable, Coroutine

import click

from pykvpool.cli import format as say
from pykvpool.cli.options import POOL_KEYS, configured, section
from pykvpool.cli.running import run
from pykvpool.cli.servers import describe_pool, running_master, running_node, running_pool
from pykvpool.cli.supervised import Announcement, announce, check_standard_input, end_of, standard_input
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
    if supervised:
        check_standard_input()

    async def serve() -> None:
        async with running_master(config) as serving:
            _started(f"master listens on {serving.everywhere} ({describe_pool(config.pool)})")
            if supervised:
                announce(Announcement("master", serving.addresses, serving.http))
            await _until_over(supervised)

    _serve(serve)


@click.command()
@supervised_option
@configured(*POOL_KEYS, *section("node"), *section("rdma"), "log.level")
def node(config: Config, supervised: bool) -> None:
    """Run a node: lend memory of this machine to the pool until it is stopped.

    Each node has a name of its own. One that was killed is followed by the next of its name; from one that is connected
    the name is taken only with --replace. One that starts before its master waits for it (--supervised: it does not,
    who starts it sees to the order).
    """
    _log(config)
    if supervised:
        check_standard_input()

    async def serve() -> None:
        async with running_node(config, wait=not supervised) as serving:
            name = serving.node.name
            lends = f"lends {say.size(config.node.segment_size)} to {' or '.join(config.pool.master)}"
            _started(f"node {name!r} {lends}, over {serving.everywhere}")
            if supervised:
                announce(Announcement("node", serving.addresses, serving.http, serving.engines))
            over = await _until_over(supervised, serving.node.wait_over())
            if over:
                raise SessionExpired(f"the node on {socket.gethostname()} ended: {over}")

    _serve(serve)


@click.command()
@supervised_option
@configured(
    "pool.cluster", "pool.token", "pool.token_file", "master.listen", "master.http_listen", "master.policy",
    "node.name", "node.segment_size", "node.shm_dir", "node.engine_socket", "node.data_listen", "node.fabrics",
    "log.level",
)  # fmt: skip
def pool(config: Config, supervised: bool) -> None:
    """Run a whole pool in one process: a master, and a node that lends memory of this machine.

    Enough for the engines of one host; nodes of other hosts can join it.
    """
    _log(config)
    if supervised:
        check_standard_input()

    async def serve() -> None:
        async with running_pool(config) as (master, node):
            lends = f"node {node.node.name!r} lends {say.size(config.node.segment_size)}, over {node.everywhere}"
            _started(f"pool: master listens on {master.everywhere} ({describe_pool(config.pool)}); {lends}")
            if supervised:
                announce(Announcement("pool", master.addresses, master.http, node.engines))
            over = await _until_over(supervised, node.node.wait_over())
            if over:
                raise SessionExpired(f"the node on {socket.gethostname()} ended: {over}")

    _serve(serve)


def _serve(main: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run until a signal, which is an end like any other: everything is closed in order first."""
    with contextlib.suppress(KeyboardInterrupt):
        run(main)


async def _until_over(supervised: bool, over: Coroutine[object, object, str] | None = None) -> str:
    """Wait for the end of a supervised process's input or for `over`, else for ever; the text of `over`, else ""."""
    waits = [asyncio.create_task(_input_ends() if supervised else _for_ever())]
    if over is not None:
        waits.append(asyncio.create_task(over))
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)


async def _input_ends() -> str:
    await end_of(await standard_input())
    return ""


async def _for_ever() -> str:
    await asyncio.Event().wait()
    return ""


def _log(config: Config) -> None:
    level = config.log.level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)


def _started(line: str) -> None:
    """The one line of a healthy start."""
    click.echo(f"pykvpool {line}", err=True)
