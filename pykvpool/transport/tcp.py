"""``tcp://host:port``: control connections between hosts."""

from __future__ import annotations

import asyncio
import socket

from pykvpool.errors import ConfigError, Unavailable
from pykvpool.transport.address import HostPort, parse_host_port
from pykvpool.transport.base import Listener, OnStream, Stream
from pykvpool.transport.port_holder import who_listens_on
from pykvpool.transport.sockets import SocketStream, reason_of

#: Connections that wait to be accepted: a whole cluster may come back at once after a restart of the master.
BACKLOG = 1_024


class TcpTransport:
    """See `pykvpool.transport.base.Transport`."""

    def check(self, rest: str) -> None:
        parse_host_port(rest)

    async def connect(self, rest: str) -> Stream:
        place = parse_host_port(rest)
        if place.port == 0:
            raise Unavailable("port 0 is for listening only: name the port that the master announced")
        loop = asyncio.get_running_loop()
        try:
            _, stream = await loop.create_connection(lambda: SocketStream(_describe), place.host, place.port)
        except OSError as error:
            raise Unavailable(reason_of(error)) from None
        return stream

    async def listen(self, rest: str, on_stream: OnStream) -> Listener:
        place = parse_host_port(rest)
        loop = asyncio.get_running_loop()
        host = await self._resolve_for_listening(place)
        try:
            server = await loop.create_server(
                lambda: SocketStream(_describe, on_stream), host, place.port, backlog=BACKLOG
            )
        except OSError as error:
            raise ConfigError(_cannot_listen(place, error), address=f"tcp://{place.text()}") from None
        port = server.sockets[0].getsockname()[1]
        return TcpListener(server, f"tcp://{HostPort(place.host, port).text()}")

    async def _resolve_for_listening(self, place: HostPort) -> str:
        """One literal address: a name with several would get several ports where any was asked for."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise ConfigError(f"cannot listen on tcp://{place.text()}: {reason_of(error)}") from None
        return str(found[0][4][0])


class TcpListener:
    """See `pykvpool.transport.base.Listener`."""

    def __init__(self, server: asyncio.Server, address: str) -> None:
        self.address = address
        self._server = server

    async def close(self) -> None:
        # Not `wait_closed`: from Python 3.12 on it waits for the connections, which are not ours to end.
        self._server.close()


def _describe(transport: asyncio.Transport) -> str:
    # Nothing to set: asyncio's TCP transports have TCP_NODELAY on, and frames leave once per turn of the loop.
    name = transport.get_extra_info("peername")
    return HostPort(name[0], name[1]).text() if name else "unknown"


def _cannot_listen(place: HostPort, error: OSError) -> str:
    text = f"cannot listen on tcp://{place.text()}: {reason_of(error)}"
    if isinstance(error, PermissionError):
        return f"{text}; ports below 1024 need privileges: choose another with --listen"
    holder = who_listens_on(place.port)
    return f"{text}; {holder}; choose another port with --listen" if holder else f"{text}; choose another with --listen"
