"""Data connections of one client to one owner: opened when needed, kept while healthy, bounded in number.

A connection serves one batch (or one share of it) at a time, so that destroying it, which is how a transfer is cut
short, costs nobody else anything. A connection that the owner closes while idle is noticed at once and dropped.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pykvpool.errors import Closed, PoolError, Unavailable, invariant
from pykvpool.fabric.addresses import HostPort
from pykvpool.fabric.handshake import Identity, introduce
from pykvpool.fabric.tcp_dial import dial
from pykvpool.fabric.tcp_socket import HandshakeStream, StreamSocket
from pykvpool.runtime import Runtime

#: Connections to one owner; more batches wait for a free one (within their deadline).
MAX_CONNECTIONS_PER_PEER = 16
#: Connecting and introducing ourselves takes three round trips; after this time the owner counts as unreachable, so
#: that a batch with a longer deadline can still try another way. Long enough for one lost packet to be sent again.
CONNECT_S = 3.0
#: Idle connections kept per owner.
MAX_IDLE_PER_PEER = 4


@dataclass(slots=True, eq=False)
class Connection:
    """One open data connection. `used`: it has served a request before (the owner may have closed it since)."""

    stream: StreamSocket
    used: bool = False


class ConnectionPool:
    """Connections to one endpoint."""

    def __init__(self, endpoint: str, identity: Identity, runtime: Runtime) -> None:
        self._address = HostPort.parse(endpoint)
        self._identity = identity
        self._runtime = runtime
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS_PER_PEER)
        #: The most recently used last: it is taken first.
        self._idle: list[Connection] = []
        #: In use or connecting.
        self._busy: dict[StreamSocket, None] = {}
        self._closed = False

    @property
    def idle(self) -> int:
        """Connections kept for later."""
        return len(self._idle)

    async def acquire(self, *, fresh: bool = False) -> Connection:
        """A healthy connection for one exchange; give it back with `release` or `discard`.

        `fresh` asks for a new one. Raises `Unavailable`, `Refused` or `ProtocolError`.
        """
        await self._slots.acquire()
        try:
            if self._closed:
                raise Closed("the tcp fabric client is closed")
            if self._idle and not fresh:
                connection = self._idle.pop()
                connection.stream.end_idle()
                self._busy[connection.stream] = None
                return connection
            async with asyncio.timeout(CONNECT_S):
                return await self._connect()
        except TimeoutError:
            self._slots.release()
            raise Unavailable(f"{self._address.endpoint}: no answer within {CONNECT_S:g} s") from None
        except BaseException:
            self._slots.release()
            raise

    def release(self, connection: Connection) -> None:
        """The exchange ended in step: the connection can serve another."""
        if connection.stream.failure is not None or self._closed or len(self._idle) >= MAX_IDLE_PER_PEER:
            self.discard(connection, Closed("the connection is not needed any more"))
            return
        del self._busy[connection.stream]
        self._slots.release()
        connection.used = True
        self._idle.append(connection)
        connection.stream.watch_idle(lambda: self._drop_idle(connection))

    def discard(self, connection: Connection, reason: PoolError) -> None:
        """Destroy it: when this returns nothing of it touches local memory."""
        connection.stream.abort(reason)
        del self._busy[connection.stream]
        self._slots.release()

    def close(self, reason: Closed) -> None:
        """Close what is idle; no exchange may be under way."""
        self._closed = True
        invariant(not self._busy, "a pool is closed when its transfers have ended")
        for connection in self._idle:
            connection.stream.close(reason)
        self._idle.clear()

    def _drop_idle(self, connection: Connection) -> None:
        self._idle.remove(connection)
        connection.stream.abort(Unavailable("the owner closed an idle connection"))

    async def _connect(self) -> Connection:
        stream = StreamSocket(await dial(self._address, self._address.endpoint), asyncio.get_running_loop())
        self._busy[stream] = None
        try:
            await introduce(HandshakeStream(stream), self._identity.handshake(self._runtime))
        except BaseException as error:
            # In order, so that the owner still gets our reason.
            stream.close(Unavailable("the handshake did not end"))
            del self._busy[stream]
            if isinstance(error, PoolError) and not isinstance(error, Closed):
                raise type(error)(f"{self._address.endpoint}: {error.message}") from error
            raise
        return Connection(stream)
