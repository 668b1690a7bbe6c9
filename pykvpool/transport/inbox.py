"""Frames that arrived and wait for `recv`: a queue with one reader, an end, and a word to the sender when it is full.

Every transport ends in one of these, so that order, end and back-pressure mean the same on all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from pykvpool.errors import PoolError, invariant
from pykvpool.transport.base import RECV_HIGH_BYTES


class Inbox:
    """`pause` is called when more than `RECV_HIGH_BYTES` wait, `resume` when they have been taken."""

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause = pause
        self._resume = resume
        self._frames: deque[bytes] = deque()
        #: Bytes in `_frames`.
        self.waiting_bytes = 0
        self._paused = False
        self._ended = False
        #: Why it ended; None: the peer closed in good order.
        self._failure: PoolError | None = None
        #: The one reader, while it waits.
        self._reader: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        return self._ended

    def put(self, frame: bytes) -> None:
        """A frame arrived (dropped after the end)."""
        if self._ended:
            return
        self._frames.append(frame)
        self.waiting_bytes += len(frame)
        if self.waiting_bytes > RECV_HIGH_BYTES and not self._paused:
            self._paused = True
            self._pause()
        self._wake()

    def end(self, failure: PoolError | None = None) -> None:
        """No more will come. The first end counts."""
        if not self._ended:
            self._ended, self._failure = True, failure
            self._wake()

    def discard(self) -> None:
        """Drop what waits: this end is closed and nobody will read it."""
        self._frames.clear()
        self.waiting_bytes = 0

    async def get(self) -> bytes | None:
        """The next frame; None at the end; raises the failure, if that is how it ended."""
        while not self._frames:
            if self._ended:
                if self._failure is not None:
                    raise self._failure
                return None
            invariant(self._reader is None, "one task at a time receives from a stream")
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        frame = self._frames.popleft()
        self.waiting_bytes -= len(frame)
        if self._paused and self.waiting_bytes <= RECV_HIGH_BYTES // 2:
            self._paused = False
            self._resume()
        return frame

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
