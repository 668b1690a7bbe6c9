"""Connecting to an owner over TCP: for data connections, and for the lines of the rdma fabric."""

from __future__ import annotations

import asyncio
import socket

from pykvpool.errors import Unavailable
from pykvpool.fabric.addresses import HostPort
from pykvpool.fabric.tcp_socket import tune


async def dial(address: HostPort, endpoint: str) -> socket.socket:
    """A connected, non-blocking socket, by the first of the host's addresses that works.

    Raises `Unavailable`, which names `endpoint`.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(f"{endpoint}: the host is unknown ({error.strerror})") from error
    failures = []
    for family, kind, protocol, _, where in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            tune(sock)
            await loop.sock_connect(sock, where)
        except OSError as error:
            sock.close()
            failures.append(error.strerror or str(error))
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise Unavailable(f"{endpoint}: {'; '.join(failures) or 'no address'}")
