"""What an engine's process says to its node: in order, and no faster than the node reads.

A burst of new requests asks for more than a socket takes at once (400 prompts of 80,000 tokens name two million
blocks). So what may be large waits here, not yet encoded, and goes when the stream has room; what its job or lookup no
longer needs by then is left out. Short words about the ring and signs of life pass all of that.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from typing import NamedTuple

from pykvpool.errors import LimitExceeded, PoolError
from pykvpool.host.agent import wire
from pykvpool.transport.base import SEND_HIGH_BYTES, Stream


class Claim(NamedTuple):
    """What somebody waits for who asked the node for something."""

    #: It has no end yet.
    is_open: Callable[[], bool]
    #: End it. Nothing happens where it has ended.
    fail: Callable[[PoolError], None]


class Outbox:
    """Of one attachment, whose stream it ends where that fails. Everything is for the loop's thread."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._waiting: collections.deque[tuple[wire.FromEngine, Claim | None]] = collections.deque()
        self._sending: asyncio.Task[None] | None = None

    def put(self, message: wire.FromEngine, claim: Claim | None = None) -> None:
        """Behind everything that was put before; not sent where nobody waits for it any more when its turn comes."""
        if not self._waiting and self._stream.buffered_bytes < SEND_HIGH_BYTES:
            self._send(message, claim)
            return
        self._waiting.append((message, claim))
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_waiting(), name="pykvpool outbox")

    def put_ahead(self, message: wire.Filled | wire.Taken | wire.Ping) -> None:
        """Before everything that waits."""
        self._send(message)

    def close(self) -> None:
        """What waits is never sent. Harmless twice."""
        self._waiting.clear()
        if self._sending is not None:
            self._sending.cancel()

    async def _send_waiting(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # the stream hands on what it was given in this turn
            await self._stream.drain()
            while self._waiting and self._stream.buffered_bytes < SEND_HIGH_BYTES:
                message, claim = self._waiting.popleft()
                if claim is None or claim.is_open():
                    self._send(message, claim)
        self._sending = None

    def _send(self, message: wire.FromEngine, claim: Claim | None = None) -> None:
        try:
            self._stream.send(wire.encode(message))
        except PoolError as error:
            if claim is not None and isinstance(error, LimitExceeded):
                claim.fail(error)  # too large for any node: it alone
            else:
                self._stream.abort()  # whoever follows the stream sees its end
