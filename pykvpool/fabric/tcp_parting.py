"""Hanging up so that our last words arrive: a plain close with bytes unread would make the kernel drop them."""

from __future__ import annotations

import asyncio
import contextlib

from pykvpool.errors import PoolError
from pykvpool.fabric.cursor import Cursor
from pykvpool.fabric.tcp_socket import StreamSocket

#: How much, and how long, we listen to a peer that we have given up, so that it hears why.
MAX_LINGER_BYTES = 1024 * 1024
LINGER_S = 1.0
#: Where bytes go that nobody looks at; shared by all.
_SCRAP = memoryview(bytearray(256 * 1024))


def scrap(length: int) -> list[memoryview]:
    """`length` bytes of buffer that nobody reads: the same memory again and again."""
    whole, rest = divmod(length, _SCRAP.nbytes)
    return [_SCRAP] * whole + [_SCRAP[:rest]]


async def part(stream: StreamSocket) -> None:
    """Say no more, and listen until the peer has hung up or the bounds are met. The stream is still to be closed."""
    stream.end_sending()
    unread = Cursor()
    unread.add(scrap(MAX_LINGER_BYTES))
    with contextlib.suppress(PoolError, TimeoutError):
        async with asyncio.timeout(LINGER_S):
            await stream.receive(unread)
