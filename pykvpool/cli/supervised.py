"""Being a child: the other end of `processes`, for masters, nodes and workers that another program started.

A supervised process says on standard output, in one JSON line, where it listens, and stops when its standard input
ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from pykvpool.errors import ConfigError

#: Longest line and largest backlog taken from standard input (bytes).
MAX_INPUT_BYTES = 1 << 20


class Announcement(msgspec.Struct, frozen=True):
    """What a supervised master or node says once it serves."""

    #: "master" or "node".
    role: str
    #: Control addresses of a master, data endpoints of a node.
    addresses: tuple[str, ...]
    #: Address of the HTTP face, "" where there is none.
    http: str = ""


def announce(announcement: Announcement) -> None:
    """Say it on standard output."""
    sys.stdout.buffer.write(msgspec.json.encode(announcement) + b"\n")
    sys.stdout.buffer.flush()


async def standard_input() -> asyncio.StreamReader:
    """Standard input, read on the event loop. Raises `ConfigError` where it is nothing that can be waited for."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_INPUT_BYTES)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    except (ValueError, PermissionError):
        raise ConfigError(
            "standard input of a supervised process must be a pipe: its end is the sign to stop"
        ) from None
    return reader


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
