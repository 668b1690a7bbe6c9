"""A line: the TCP connection between a peer and an owner on which queue pairs are made and ended.

Messages go out in order and never wait for the other side: what it does not take is kept, up to a bound, and a side
that lets it grow further is given up. The end of a line is meant to be noticed: whoever holds one ends its queue pairs
with it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from pykvpool.errors import PoolError, Unavailable
from pykvpool.fabric.rdma.wire import LENGTH, MAX_BODY_BYTES, Said, body_bytes, decode, encode
from pykvpool.fabric.tcp_socket import StreamSocket

#: Messages kept for a side that does not read. It has at most some dozens of queue pairs to hear of.
MAX_UNSENT = 1024
#: Bytes kept likewise: an offer of a mount in very many chunks may have half a megabyte.
MAX_UNSENT_BYTES = 8 * MAX_BODY_BYTES
#: How long a last word may take to be sent.
PART_S = 1.0


class Line:
    """Owns a connected stream whose handshake is over."""

    def __init__(self, stream: StreamSocket) -> None:
        self._stream = stream
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        #: Sends what is unsent; None: nothing is.
        self._sender: asyncio.Task[None] | None = None

    @property
    def failure(self) -> PoolError | None:
        """Why it ended; None: it has not."""
        return self._stream.failure

    def say(self, message: Said) -> None:
        """Send, in order with everything said before. Harmless on a line that has ended."""
        if self.failure is not None:
            return
        if len(self._unsent) >= MAX_UNSENT or self._unsent_bytes >= MAX_UNSENT_BYTES:
            self.end(Unavailable("the other side of an rdma line does not read"))
            return
        self._unsent.append(encode(message))
        self._unsent_bytes += len(self._unsent[-1])
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send(), name="pykvpool rdma line")

    async def hear(self) -> Said:
        """The next message. Raises why the line ended, or `ProtocolError`."""
        head = await self._stream.receive_exactly(LENGTH.size)
        return decode(await self._stream.receive_exactly(body_bytes(head)))

    def end(self, reason: PoolError) -> None:
        """Hang up; what was said and not yet sent is lost. Harmless twice."""
        self._stream.abort(reason)

    async def part(self, reason: PoolError) -> None:
        """Hang up once what was said is sent, if the other side takes it."""
        if self._sender is not None:
            await asyncio.wait([self._sender], timeout=PART_S)
        self._stream.close(reason)

    async def _send(self) -> None:
        try:
            while self._unsent:
                data = self._unsent.popleft()
                await self._stream.send_bytes(data)
                self._unsent_bytes -= len(data)
        except PoolError:
            self._unsent.clear()  # whoever hears on this line learns why it ended
        finally:
            self._sender = None
