"""Being a child: the other end of `processes`, for masters, nodes and workers that another program started.

A supervised process says on standard output, in one JSON line, where it listens, and stops when its standard input
ends.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from pykvpool.errors import ConfigError

#: Longest line and largest backlog taken from standard input (bytes).
MAX_INPUT_BYTES = 1 << 20


class Announcement(msgspec.Struct, frozen=True):
    """What a supervised master or node says once it serves."""

    #: "master", "node" or "pool".
    role: str
    #: Control addresses of a master or pool, data endpoints of a node.
    addresses: tuple[str, ...]
    #: Address of the HTTP face, "" where there is none.
    http: str = ""
    #: UNIX socket of a node for the engines of its host, "" where there is none.
    engines: str = ""


def announce(announcement: Announcement) -> None:
    """Say it on standard output."""
    sys.stdout.buffer.write(msgspec.json.encode(announcement) + b"\n")
    sys.stdout.buffer.flush()


async def standard_input() -> asyncio.StreamReader:
    """Standard input, read on the event loop. Raises `ConfigError` where it is nothing that can be waited for."""
    check_standard_input()
    reader = asyncio.StreamReader(limit=MAX_INPUT_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin.buffer)
    return reader


def check_standard_input() -> None:
    """Raises `ConfigError` where its end cannot be waited for. Known before anything is started."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        mode = 0
    # /dev/null is a character device as a terminal is, but nothing that epoll takes.
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(0)):
        raise ConfigError("standard input of a supervised process must be a pipe: its end is the sign to stop")


async def end_of(reader: asyncio.StreamReader) -> None:
    """Wait until the input ends; what comes meanwhile is dropped."""
    while await reader.read(MAX_INPUT_BYTES):
        pass


@asynccontextmanager
async def ended_by(reader: asyncio.StreamReader) -> AsyncIterator[None]:
    """Cancel the body when the input ends: nobody waits for its result any more."""
    body = asyncio.current_task()

    async def watch() -> None:
        await end_of(reader)
        if body is not None:
            body.cancel()

    watching = asyncio.create_task(watch(), name="end of standard input")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
