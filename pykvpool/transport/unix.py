"""``unix:///path``: control connections within one host and user.

The socket file is readable by its owner only. A file that nobody listens on any more (its process was killed) is
replaced; one that is alive, or is no socket, is left alone and named in the error.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from pathlib import Path

from pykvpool.errors import ConfigError, Unavailable
from pykvpool.transport.address import parse_unix_path
from pykvpool.transport.base import Listener, OnStream, Stream
from pykvpool.transport.port_holder import command_of
from pykvpool.transport.sockets import SocketStream, reason_of
from pykvpool.transport.tcp import BACKLOG


class UnixTransport:
    """See `pykvpool.transport.base.Transport`."""

    def check(self, rest: str) -> None:
        parse_unix_path(rest)

    async def connect(self, rest: str) -> Stream:
        path = parse_unix_path(rest)
        loop = asyncio.get_running_loop()
        try:
            _, stream = await loop.create_unix_connection(lambda: SocketStream(_describe), path)
        except FileNotFoundError:
            raise Unavailable("no such socket file: is the master running on this host?") from None
        except OSError as error:
            raise Unavailable(reason_of(error)) from None
        return stream

    async def listen(self, rest: str, on_stream: OnStream) -> Listener:
        path = parse_unix_path(rest)
        loop = asyncio.get_running_loop()
        try:
            bound = _bind(path)
        except OSError as error:
            raise ConfigError(f"cannot listen on unix://{path}: {reason_of(error)}; see --listen") from None
        server = await loop.create_unix_server(lambda: SocketStream(_describe, on_stream), sock=bound, backlog=BACKLOG)
        return UnixListener(server, path)


class UnixListener:
    """See `pykvpool.transport.base.Listener`."""

    def __init__(self, server: asyncio.Server, path: str) -> None:
        self.address = f"unix://{path}"
        self._server = server
        self._path = Path(path)
        #: Which file is ours: a later listener may have put another in its place.
        self._inode = self._path.stat().st_ino

    async def close(self) -> None:
        try:
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        except FileNotFoundError:
            pass  # closed before, or somebody tidied up
        self._server.close()


def _bind(path: str) -> socket.socket:
    """A socket bound to `path`, for its owner only. Raises `OSError` or `ConfigError`."""
    _remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(bound.fileno(), 0o600)  # before bind: the file is made with this mode, there is no gap
        bound.bind(path)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


def _remove_stale(path: str) -> None:
    place = Path(path)
    try:
        mode = place.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"cannot listen on unix://{path}: a file that is no socket is there; see --listen")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            place.unlink()
            return
        except BlockingIOError:
            pass  # its queue is full: somebody is there
        else:
            raise ConfigError(f"cannot listen on unix://{path}: {_peer_of(probe)} listens there; see --listen")
    raise ConfigError(f"cannot listen on unix://{path}: another process listens there; see --listen")


def _peer_of(sock: socket.socket) -> str:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", raw)[0]
    return f"pid {pid} ({command_of(Path('/proc') / str(pid))})"


def _describe(transport: asyncio.Transport) -> str:
    return _peer_of(transport.get_extra_info("socket"))
