"""Addresses as people write them: ``tcp://host:port``, ``tcp://[::1]:7000``, ``unix:///path``, ``inproc://name``.

Text in, typed places out, and for what is wrong a sentence that says how it should be. No I/O.
"""

from __future__ import annotations

from typing import NamedTuple

from pykvpool.errors import InvalidArgument

#: Where a master listens unless told otherwise, and the port of a ``tcp://host`` without one.
DEFAULT_MASTER_PORT = 7000
DEFAULT_MASTER_ADDRESS = f"tcp://127.0.0.1:{DEFAULT_MASTER_PORT}"

#: The kernel's bound on the path of a UNIX socket: 108 bytes with the terminating zero.
MAX_UNIX_PATH_BYTES = 107


class HostPort(NamedTuple):
    host: str
    port: int

    def text(self) -> str:
        """``host:port``, with brackets around an IPv6 host."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def split_scheme(address: str) -> tuple[str, str]:
    """``tcp://host:1`` -> ``("tcp", "host:1")``. Raises `InvalidArgument` where there is no scheme."""
    scheme, separator, rest = address.partition("://")
    if not separator or not scheme:
        hint = "unix://" + address if address.startswith("/") else "tcp://" + (address or "host:port")
        raise InvalidArgument(f"address {address!r} has no scheme: write {hint}")
    return scheme.lower(), rest


def parse_host_port(rest: str, default_port: int = DEFAULT_MASTER_PORT) -> HostPort:
    """``host:port``, ``host``, ``[ipv6]:port`` or ``[ipv6]``. Raises `InvalidArgument`."""
    if "/" in rest or "@" in rest or rest != rest.strip():
        raise InvalidArgument(f"address tcp://{rest}: only host and port belong here, as in tcp://host:7000")
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise InvalidArgument(f"address tcp://{rest}: write an IPv6 address as tcp://[::1]:7000")
        port_text = tail[1:] if tail else None
    elif rest.count(":") > 1:
        raise InvalidArgument(f"address tcp://{rest}: an IPv6 address needs brackets, as in tcp://[::1]:7000")
    else:
        host, colon, tail = rest.partition(":")
        port_text = tail if colon else None
    if not host:
        raise InvalidArgument(f"address tcp://{rest} names no host: write tcp://127.0.0.1:7000, or 0.0.0.0 for all")
    return HostPort(host, default_port if port_text is None else _port(rest, port_text))


def _port(rest: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise InvalidArgument(f"address tcp://{rest}: {text!r} is no port; a port is a number from 0 to 65535")
    return int(text)


def parse_unix_path(rest: str) -> str:
    """The absolute path of ``unix:///path``. Raises `InvalidArgument`."""
    if not rest.startswith("/"):
        raise InvalidArgument(f"address unix://{rest}: the path must be absolute, as in unix:///run/pykvpool.sock")
    if "\0" in rest or len(rest.encode("utf-8", "surrogateescape")) > MAX_UNIX_PATH_BYTES:
        raise InvalidArgument(f"address unix://{rest}: a socket's path has at most {MAX_UNIX_PATH_BYTES} bytes")
    return rest
