"""Endpoint addresses of the fabrics: text to typed value and back, and which host this is.

``inproc://PROCESS/GENERATION``, ``shm://HOST/absolute/path/of/socket``, ``tcp://host:port`` and ``rdma://host:port``
(IPv6: ``tcp://[::1]:7001``); the last is where queue pairs are agreed on, not where bytes travel.
No I/O beyond reading the boot id once.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pykvpool.errors import InvalidArgument

#: Longest socket path that sockaddr_un can hold, without the closing zero byte (unix(7)).
MAX_SOCKET_PATH_BYTES = 107
_MAX_PORT = 65_535


def scheme_of(endpoint: str) -> str:
    return endpoint.partition("://")[0]


def endpoint_of(endpoints: Iterable[str], scheme: str) -> str | None:
    """The first endpoint of that scheme, None where there is none."""
    return next((endpoint for endpoint in endpoints if endpoint.startswith(f"{scheme}://")), None)


@dataclass(frozen=True, slots=True)
class HostPort:
    """Where TCP listens or connects to. `host` is without brackets; port 0 lets the system choose when listening."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, scheme: str = "tcp") -> HostPort:
        """Read ``host:port`` or ``[v6]:port``, with ``scheme://`` in front or without. Raises `InvalidArgument`."""
        given, separator, rest = text.rpartition("://")
        if separator and given != scheme:
            raise InvalidArgument(f"{text!r}: expected {scheme}://host:port")
        host, colon, port_text = rest.rpartition(":")
        if not colon or not host or not (port_text.isascii() and port_text.isdigit()):
            raise InvalidArgument(f"{text!r}: expected host:port, for example 127.0.0.1:7001 or [::1]:7001")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host or "[" in host or "]" in host:
            raise InvalidArgument(f"{text!r}: an IPv6 address goes in brackets, for example [::1]:7001")
        if int(port_text) > _MAX_PORT:
            raise InvalidArgument(f"{text!r}: port {port_text} is over {_MAX_PORT}")
        return cls(host, int(port_text))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def endpoint(self) -> str:
        return f"tcp://{self}"


@dataclass(frozen=True, slots=True)
class ShmAddress:
    """A node's UNIX socket on the host (and for the user) named by `host_id`."""

    host_id: str
    path: str

    @classmethod
    def parse(cls, text: str) -> ShmAddress:
        """Read ``shm://HOST/path``. Raises `InvalidArgument`."""
        host, slash, path = text.removeprefix("shm://").partition("/")
        if not text.startswith("shm://") or not host or not slash or not path:
            raise InvalidArgument(f"{text!r}: expected shm://host-id/absolute/path/of/socket")
        return cls(host, f"/{path}")

    @property
    def endpoint(self) -> str:
        return f"shm://{self.host_id}{self.path}"


@functools.cache
def host_id() -> str:
    """Names this boot of this kernel, and this user: processes that agree on it can share memory through a socket.

    Network namespaces do not matter; containers of one host agree on it too (whether they see each other's socket
    files shows when they connect).
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return hashlib.sha256(f"{boot} {os.getuid()}".encode()).hexdigest()[:16]
