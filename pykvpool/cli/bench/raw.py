"""What the bare machine does: the yardsticks that the pool's figures are divided by.

`memcpy_rate` is one core copying memory that no cache holds. `loopback_rate` is what asyncio can receive from another
process over loopback TCP with the cheapest of its protocols (`BufferedProtocol` into one buffer, nothing looked at):
no Python program that receives bytes on an event loop is faster.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import sys
import time
from collections.abc import Callable

from pykvpool.cli.processes import Child, Children

#: Copied at a time; well beyond the caches of present-day machines' cores.
MEMCPY_BYTES = 64 << 20
#: Received for one figure: enough for TCP's window to open, short enough to be taken every round.
LOOPBACK_BYTES = 256 << 20
#: Buffer of the receiver and of the sender.
WIRE_BUFFER_BYTES = 1 << 20
#: A sender that says nothing for this long has failed (s).
LOOPBACK_TIMEOUT_S = 30.0


class Memcpy:
    """Two buffers and the rate at which one can be copied onto the other."""

    def __init__(self) -> None:
        self._source = ctypes.create_string_buffer(MEMCPY_BYTES)
        self._target = ctypes.create_string_buffer(MEMCPY_BYTES)
        # Touch every page of both, so that no figure pays for page faults.
        ctypes.memset(self._source, 1, MEMCPY_BYTES)
        ctypes.memset(self._target, 2, MEMCPY_BYTES)

    def rate(self, seconds: float) -> float:
        """Bytes per second over as many copies as fit into `seconds` (at least one)."""
        copied = 0
        started = time.perf_counter()
        while not copied or time.perf_counter() < started + seconds:
            ctypes.memmove(self._target, self._source, MEMCPY_BYTES)
            copied += MEMCPY_BYTES
        return copied / (time.perf_counter() - started)


class _Receiver(asyncio.BufferedProtocol):
    """Counts bytes into one buffer until `expected` have come."""

    def __init__(self, done: asyncio.Future[float]) -> None:
        self._buffer = memoryview(bytearray(WIRE_BUFFER_BYTES))
        self._left = LOOPBACK_BYTES
        self._started = 0.0
        self._done = done

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._started:
            self._started = time.perf_counter()
        self._left -= nbytes
        if self._left <= 0 and not self._done.done():
            self._done.set_result(LOOPBACK_BYTES / (time.perf_counter() - self._started))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or ConnectionError("the sender went away"))


async def receive_rate(ask: Callable[[int], None]) -> float:
    """Bytes per second of receiving `LOOPBACK_BYTES`; ``ask(port)`` makes another process `send` them.

    Raises OSError, TimeoutError.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[float] = loop.create_future()
    server = await loop.create_server(lambda: _Receiver(done), "127.0.0.1", 0)
    try:
        ask(server.sockets[0].getsockname()[1])
        async with asyncio.timeout(LOOPBACK_TIMEOUT_S):
            return await done
    finally:
        server.close()


def send(port: int) -> None:
    """The other process's part: blocking sendall of `LOOPBACK_BYTES`, the fastest that Python can."""
    payload = memoryview(bytes(WIRE_BUFFER_BYTES))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(LOOPBACK_BYTES // WIRE_BUFFER_BYTES):
            connection.sendall(payload)


class Sender:
    """A process that sends when asked: ``python -m pykvpool.cli.bench.raw``, one port a line on its standard input."""

    def __init__(self, child: Child) -> None:
        self._child = child

    @classmethod
    async def start(cls, children: Children) -> Sender:
        return cls(await children.start("raw sender", __name__))

    async def rate(self) -> float:
        """Bytes per second that this process receives from it."""
        return await receive_rate(lambda port: self._child.stdin.write(f"{port}\n".encode()))


if __name__ == "__main__":
    for line in sys.stdin:
        send(int(line))
