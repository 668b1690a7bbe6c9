"""A stream over an asyncio socket transport: what tcp and unix share.

An `asyncio.Protocol`, not asyncio's streams: frames sent in one turn of the loop leave in one write, and arriving bytes
go straight to the frame decoder. It knows sockets and frames, never what a frame means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from pykvpool.errors import Closed, Overloaded, PoolError, Unavailable
from pykvpool.protocol.frames import MAX_HANDSHAKE_FRAME_BYTES, FrameDecoder, frame_header
from pykvpool.transport.base import CLOSE_LINGER_S, SEND_HIGH_BYTES, SEND_LIMIT_BYTES, OnStream
from pykvpool.transport.inbox import Inbox


class SocketStream(asyncio.Protocol):
    """One connection. `describe` names the peer once the socket is there; `on_open` is told of accepted ones."""

    def __init__(self, describe: Callable[[asyncio.Transport], str], on_open: OnStream | None = None) -> None:
        self.peer = "unknown"
        self._describe = describe
        self._on_open = on_open
        self._decoder = FrameDecoder(MAX_HANDSHAKE_FRAME_BYTES)
        self._inbox = Inbox(self._pause_peer, self._resume_peer)
        #: Set by `connection_made`, before anybody sees this stream.
        self._transport: asyncio.Transport | None = None
        #: Headers and bodies of this turn of the loop, not yet given to the transport.
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._flush_handle: asyncio.Handle | None = None
        #: The transport holds too much: `drain` waits for these.
        self._writable = asyncio.Event()
        self._writable.set()
        self._closing = False
        self._gone = asyncio.Event()
        self._linger: asyncio.TimerHandle | None = None

    # -- what asyncio calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=SEND_HIGH_BYTES)
        self.peer = self._describe(self._transport)
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self._inbox.put(frame)
        if self._decoder.failure is not None:
            self._inbox.end(self._decoder.failure)

    def eof_received(self) -> bool:
        self._decoder.end()
        self._inbox.end(self._decoder.failure)
        return False  # asyncio sends what is buffered, then closes

    def connection_lost(self, exc: Exception | None) -> None:
        failure: PoolError | None = None
        if exc is not None and not self._closing:
            failure = Unavailable(f"the connection to {self.peer} broke: {reason_of(exc)}")
        self._inbox.end(failure)
        self._closing = True
        self._outgoing.clear()
        self._outgoing_bytes = 0
        if self._linger is not None:
            self._linger.cancel()
        self._writable.set()
        self._gone.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- what `Stream` promises -----------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        held = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._outgoing_bytes + held

    def allow(self, limit_bytes: int) -> None:
        self._decoder.limit_bytes = limit_bytes

    def send(self, frame: bytes) -> None:
        if self._closing or self._transport is None:
            raise Closed(f"the connection to {self.peer} is closed")
        header = frame_header(len(frame))
        if self.buffered_bytes + len(frame) > SEND_LIMIT_BYTES:
            raise Overloaded(f"{self.peer} does not read: {self.buffered_bytes:,} bytes wait to be sent")
        self._outgoing += (header, frame)
        self._outgoing_bytes += len(header) + len(frame)
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self._flush)

    async def drain(self) -> None:
        if self._outgoing_bytes > SEND_HIGH_BYTES:
            self._flush()
        if not self._writable.is_set():
            await self._writable.wait()

    async def recv(self) -> bytes | None:
        return await self._inbox.get()

    def close(self) -> None:
        if self._closing or self._transport is None:
            return
        self._closing = True
        self._inbox.end()
        self._flush()
        self._transport.close()
        self._linger = asyncio.get_running_loop().call_later(CLOSE_LINGER_S, self._transport.abort)

    def abort(self) -> None:
        self._closing = True
        self._inbox.end()
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await self._gone.wait()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Hand this turn's frames to the transport in one write."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if self._outgoing and self._transport is not None:
            data = b"".join(self._outgoing)
            self._outgoing.clear()
            self._outgoing_bytes = 0
            self._transport.write(data)

    def _pause_peer(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_peer(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


def reason_of(error: BaseException) -> str:
    """Why a connection could not be made or broke, as people say it."""
    match error:
        case ConnectionRefusedError():
            return "connection refused: nothing listens there"
        case ConnectionResetError() | BrokenPipeError():
            return "the peer reset it"
        case TimeoutError():
            return "timed out: nothing answers there"
        case OSError(strerror=text) if text:
            return text[0].lower() + text[1:]
        case _:
            return str(error) or type(error).__name__
