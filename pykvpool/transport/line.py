"""One connection of a session, seen from its sending side: how much may go out now, and heartbeats.

It moves requests from the call table to the stream while both the window and the stream have room, and shows life when
nothing else does. It lives as long as its connection; the calls outlive it.
"""

from __future__ import annotations

import asyncio
import contextlib

from pykvpool.errors import Closed
from pykvpool.model.commands import Command, Heartbeat
from pykvpool.model.replies import Reply
from pykvpool.transport.base import SEND_HIGH_BYTES, Stream
from pykvpool.transport.calls import CallTable
from pykvpool.transport.keepalive import Keepalive


class Line:
    """Made when a connection is open; unanswered requests of the one before go out first."""

    def __init__(self, stream: Stream, calls: CallTable, ttl_ms: int) -> None:
        self.stream = stream
        self._calls = calls
        self._keepalive = Keepalive(ttl_ms, self._beat, stream.abort)
        #: Waits for the stream to take more, while calls are held up by it.
        self._drainer: asyncio.Task[None] | None = None
        calls.reconnected()
        self.pump()

    def pump(self) -> None:
        """Send what the stream and the window have room for."""
        while self.stream.buffered_bytes < SEND_HIGH_BYTES:
            frame = self._calls.next_frame()
            if frame is None:
                return
            self._send(frame)
        if self._drainer is None and self._calls.waiting:
            self._drainer = asyncio.get_running_loop().create_task(self._pump_when_drained())

    def send_at_once(self, command: Command, owner: asyncio.Future[Reply] | None) -> None:
        """Past the queue and the window."""
        self._send(self._calls.frame_at_once(command, owner))

    def heard(self) -> None:
        """A frame came."""
        self._keepalive.heard()

    def stop(self) -> None:
        """The connection is over."""
        self._keepalive.stop()
        if self._drainer is not None:
            self._drainer.cancel()

    async def _pump_when_drained(self) -> None:
        await self.stream.drain()
        self._drainer = None
        self.pump()

    def _beat(self) -> None:
        self.send_at_once(Heartbeat(), None)

    def _send(self, frame: bytes) -> None:
        self._keepalive.sent()
        with contextlib.suppress(Closed):  # the reader is about to notice; the frame is kept and sent again
            self.stream.send(frame)
