"""From an address to the transport that serves it, by scheme.

A registry is a value that shells are given, so that a simulator can hand them one of its own (or add ``sim://`` to it);
`default_transports()` is the one that everybody uses who was given none.
"""

from __future__ import annotations

import functools

from pykvpool.errors import InvalidArgument, NotSupported
from pykvpool.transport.address import split_scheme
from pykvpool.transport.base import Listener, OnStream, Stream, Transport
from pykvpool.transport.inproc import InprocTransport
from pykvpool.transport.tcp import TcpTransport
from pykvpool.transport.unix import UnixTransport


class TransportRegistry:
    """Schemes and their transports."""

    def __init__(self) -> None:
        self._transports: dict[str, Transport] = {}

    def register(self, scheme: str, transport: Transport) -> None:
        """Raises `InvalidArgument` where the scheme is taken: two meanings of one address help nobody."""
        if scheme in self._transports:
            raise InvalidArgument(f"the scheme {scheme}:// is registered already")
        self._transports[scheme] = transport

    def check(self, address: str) -> None:
        """Raises `InvalidArgument` (or `NotSupported`) for an address that can never work."""
        transport, rest = self._resolve(address)
        transport.check(rest)

    async def connect(self, address: str) -> Stream:
        """See `Transport.connect`."""
        transport, rest = self._resolve(address)
        transport.check(rest)
        return await transport.connect(rest)

    async def listen(self, address: str, on_stream: OnStream) -> Listener:
        """See `Transport.listen`."""
        transport, rest = self._resolve(address)
        transport.check(rest)
        return await transport.listen(rest, on_stream)

    def _resolve(self, address: str) -> tuple[Transport, str]:
        scheme, rest = split_scheme(address)
        transport = self._transports.get(scheme)
        if transport is None:
            known = ", ".join(f"{name}://" for name in self._transports)
            raise NotSupported(f"address {address!r}: no control transport {scheme}://; there are {known}")
        return transport, rest


def standard_transports() -> TransportRegistry:
    """A fresh registry of tcp, unix and inproc; its inproc names are its own."""
    registry = TransportRegistry()
    registry.register("tcp", TcpTransport())
    registry.register("unix", UnixTransport())
    registry.register("inproc", InprocTransport())
    return registry


@functools.cache
def default_transports() -> TransportRegistry:
    """The registry of this process."""
    return standard_transports()
