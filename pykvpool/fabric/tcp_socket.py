"""A non-blocking stream socket on the event loop that moves bytes straight between the wire and the caller's memory.

asyncio's own transports copy (a partly sent buffer is copied into a bytearray on Python 3.11) and hand out fresh bytes
objects; here `recvmsg_into` and `sendmsg` work on slices of the segment. All I/O happens in callbacks on the loop, so
once `abort` returns, or a pending call is cancelled, nothing can touch the caller's buffers: that is how this fabric
keeps the drained rule, and why a fence is exact. One receive and one send may be pending at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from pykvpool.errors import PoolError, ProtocolError, Unavailable, invariant
from pykvpool.fabric.cursor import Cursor

#: Bytes per system call. They are summed right after (in 10 to 20 us), so they should still be in a near cache; smaller
#: chunks measured slower where several processes share a core.
CHUNK_BYTES = 512 * 1024
#: Bytes that one callback may move before it lets the loop go on: about half a millisecond of copying.
TURN_BYTES = 2 * 1024 * 1024
#: Kernel buffers we ask for where the system allows that much; else its own tuning does better than a capped request.
SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
#: A silent peer is probed after this time, and given up about half a minute later.
KEEPALIVE_IDLE_S = 15
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 4
#: Times within its limit that a `ProgressWatch` looks: it is late by one such part at most.
LOOKS = 4


class StreamSocket:
    """Owns a connected stream socket. After any failure it is dead: every later call fails the same way."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop = loop
        #: What is being moved; None: nothing.
        self._receiving: tuple[Cursor, asyncio.Future[None]] | None = None
        self._sending: tuple[Cursor, asyncio.Future[None]] | None = None
        #: Whether the loop watches the socket for us.
        self._reading = False
        self._writing = False
        #: Bytes moved so far, either way: a peer that is alive makes it rise.
        self.moved_bytes = 0
        #: Why this socket is dead; None: it is not.
        self.failure: PoolError | None = None

    def receive(self, cursor: Cursor) -> asyncio.Future[None]:
        """Fill `cursor`. Fails with `Unavailable` (closed, reset) or what `abort` was told."""
        invariant(self._receiving is None or self._receiving[1].done(), "one receive at a time")
        future: asyncio.Future[None] = self._loop.create_future()
        if self.failure is not None:
            future.set_exception(self.failure)
            return future
        self._receiving = (cursor, future)
        self._on_readable()
        if not future.done() and not self._reading:
            self._loop.add_reader(self._socket, self._on_readable)
            self._reading = True
        return future

    def send(self, cursor: Cursor) -> asyncio.Future[None]:
        """Send all of `cursor`; its `done_bytes` says how much the kernel has taken, also after a failure."""
        invariant(self._sending is None or self._sending[1].done(), "one send at a time")
        future: asyncio.Future[None] = self._loop.create_future()
        if self.failure is not None:
            future.set_exception(self.failure)
            return future
        self._sending = (cursor, future)
        self._on_writable()
        if not future.done() and not self._writing:
            self._loop.add_writer(self._socket, self._on_writable)
            self._writing = True
        return future

    async def receive_exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        cursor = Cursor()
        cursor.add([memoryview(data)])
        await self.receive(cursor)
        return data

    async def send_bytes(self, data: bytes) -> None:
        cursor = Cursor()
        cursor.add([memoryview(data)])
        await self.send(cursor)

    def watch_idle(self, on_event: Callable[[], None]) -> None:
        """Call back once when an idle socket turns readable: closed by the peer, or talking out of turn."""
        self._stop_reading()
        self._loop.add_reader(self._socket, on_event)
        self._reading = True

    def end_idle(self) -> None:
        self._stop_reading()

    def end_sending(self) -> None:
        """Tell the peer that nothing more comes from here; it may still send."""
        if self.failure is None:
            with contextlib.suppress(OSError):  # it is gone already
                self._socket.shutdown(socket.SHUT_WR)

    def abort(self, failure: PoolError) -> None:
        """Destroy the connection now: pending calls fail with `failure`, unsent bytes are dropped, buffers are free."""
        if self.failure is not None:
            return
        # Linger 0 makes close() drop what the kernel has not sent and reset the peer, so little is left under way.
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._end(failure)

    def close(self, failure: PoolError) -> None:
        """Close in order: the kernel still delivers what was sent. Pending calls fail with `failure`."""
        if self.failure is None:
            self._end(failure)

    def _end(self, failure: PoolError) -> None:
        self.failure = failure
        self._stop_reading()
        self._stop_writing()
        self._socket.close()
        for pending in (self._receiving, self._sending):
            if pending is not None and not pending[1].done():
                pending[1].set_exception(failure)
                pending[1].exception()  # who started it may be gone by now: not an error nobody saw
        self._receiving = self._sending = None

    def _on_readable(self) -> None:
        if self._receiving is None or self._receiving[1].done():
            self._stop_reading()  # its caller was cancelled: the buffers are no longer ours
            return
        cursor, future = self._receiving
        budget = TURN_BYTES
        try:
            while not cursor.finished and budget > 0:
                window = cursor.window(CHUNK_BYTES)
                count = self._socket.recvmsg_into(window)[0]
                if not count:
                    self.abort(Unavailable("the peer closed the connection"))
                    return
                cursor.advance(count)
                self.moved_bytes += count
                budget -= count
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.abort(Unavailable(f"the connection broke: {error.strerror or error}"))
            return
        if cursor.finished:
            self._receiving = None
            self._stop_reading()
            future.set_result(None)

    def _on_writable(self) -> None:
        if self._sending is None or self._sending[1].done():
            self._stop_writing()
            return
        cursor, future = self._sending
        budget = TURN_BYTES
        try:
            while not cursor.finished and budget > 0:
                count = self._socket.sendmsg(cursor.window(CHUNK_BYTES))
                cursor.advance(count)
                self.moved_bytes += count
                budget -= count
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.abort(Unavailable(f"the connection broke: {error.strerror or error}"))
            return
        if cursor.finished:
            self._sending = None
            self._stop_writing()
            future.set_result(None)

    def _stop_reading(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._socket)
            self._reading = False

    def _stop_writing(self) -> None:
        if self._writing:
            self._loop.remove_writer(self._socket)
            self._writing = False


class ProgressWatch:
    """Destroys a connection on which nothing moved, either way, for `limit_s`: a peer that hangs must not cost a
    transfer all of its time. Use around an exchange, with ``with``."""

    def __init__(self, stream: StreamSocket, limit_s: float) -> None:
        self._stream = stream
        self._limit_s = limit_s
        self._seen_bytes = stream.moved_bytes
        self._silent_looks = 0
        #: It did.
        self.stalled = False

    def __enter__(self) -> ProgressWatch:
        self._loop = asyncio.get_running_loop()
        self._wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._limit_s / LOOKS, self._look)

    def _look(self) -> None:
        if self._stream.moved_bytes != self._seen_bytes:
            self._seen_bytes = self._stream.moved_bytes
            self._silent_looks = 0
        else:
            self._silent_looks += 1
        if self._silent_looks < LOOKS:
            self._wait()
            return
        self.stalled = True
        self._stream.abort(Unavailable(f"the peer hangs: nothing has moved for {self._limit_s:g} s"))


class HandshakeStream:
    """A `StreamSocket` as a channel of whole handshake messages (`pykvpool.fabric.handshake`)."""

    def __init__(self, stream: StreamSocket) -> None:
        self._stream = stream

    async def send_message(self, message: bytes) -> None:
        await self._stream.send_bytes(message)

    async def receive_message(self, header_bytes: int, body_bytes: Callable[[bytes], int]) -> bytes:
        """One message: `body_bytes` reads the length from its header (and refuses bad ones)."""
        header = bytes(await self._stream.receive_exactly(header_bytes))
        try:
            return header + bytes(await self._stream.receive_exactly(body_bytes(header)))
        except Unavailable as error:
            raise ProtocolError("the peer hung up in the middle of a handshake message") from error


def tune(sock: socket.socket) -> None:
    """Options for bulk data: no Nagle delay, probes of silent peers, big buffers where the system allows them."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    for option, limit in ((socket.SO_RCVBUF, "rmem_max"), (socket.SO_SNDBUF, "wmem_max")):
        if _system_limit(limit) >= SOCKET_BUFFER_BYTES:
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)


@functools.cache
def _system_limit(name: str) -> int:
    try:
        return int((Path("/proc/sys/net/core") / name).read_text())
    except (OSError, ValueError):
        return 0
