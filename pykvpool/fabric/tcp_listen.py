"""Opening the listening socket of the tcp fabric, and accepting from it: where wrong settings become clear errors."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Callable

from pykvpool.errors import ConfigError
from pykvpool.fabric.addresses import HostPort
from pykvpool.fabric.tcp_socket import tune

_log = logging.getLogger("pykvpool.fabric.tcp")

#: Connections the kernel holds for us between two accepts.
BACKLOG = 512
#: Connections taken in one callback; more wait for the next turn of the loop.
ACCEPTS_PER_TURN = 64
#: Out of file descriptors: accept again after this time, as the loop would spin otherwise.
ACCEPT_PAUSE_S = 0.2


def advertised(listen: HostPort, advertise: str, bound_port: int) -> HostPort:
    """The address to put into descriptors: `advertise` (``host`` or ``host:port``) or where we listen.

    Raises `ConfigError` where only a wildcard is known, which no peer could connect to.
    """
    if advertise:
        has_port = advertise.rpartition(":")[2].isdigit() and (advertise.count(":") == 1 or "]" in advertise)
        if has_port:
            return HostPort.parse(advertise)
        return HostPort(advertise.strip("[]"), bound_port)
    try:
        wildcard = ipaddress.ip_address(listen.host).is_unspecified
    except ValueError:
        wildcard = False
    if wildcard:
        raise ConfigError(
            f"data_listen is {listen}, where no peer can connect to: name the address for them with --advertise"
        )
    return HostPort(listen.host, bound_port)


async def open_listener(listen: HostPort, loop: asyncio.AbstractEventLoop, key: str = "data_listen") -> socket.socket:
    """A listening, non-blocking socket. Raises `ConfigError`, which names the configuration `key` to change."""
    flag = "--" + key.replace("_", "-")
    try:
        found = await loop.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"{key} {listen}: the host is unknown ({error.strerror})") from error
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        tune(sock)  # accepted sockets inherit the buffer sizes, which must be set before the handshake of TCP
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            reason = f"the port is taken: choose another with {flag}, port 0 takes any free one"
        else:
            reason = f"{error.strerror}: choose another address with {flag}"
        raise ConfigError(f"cannot listen for data on {listen}: {reason}") from error
    return sock


class Acceptor:
    """Hands each new connection to `on_connection`, a bounded number per turn of the loop."""

    def __init__(
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, on_connection: Callable[[socket.socket], None]
    ) -> None:
        self._socket = sock
        self._loop = loop
        self._on_connection = on_connection
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        else:
            self._loop.remove_reader(self._socket)
        self._socket.close()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("cannot accept data connections: %s; trying again in %g s", error, ACCEPT_PAUSE_S)
                self._loop.remove_reader(self._socket)
                self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._resume)
                return
            self._on_connection(connection)
