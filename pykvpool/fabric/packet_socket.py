"""UNIX packet sockets on the event loop: whole messages, with file descriptors beside them.

Small and rare traffic, so sending never waits: a peer that lets its socket buffer fill up is not reading, and misses
what is said. Descriptors that arrive are the receiver's to close.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pykvpool.errors import ConfigError, PoolError, ProtocolError, Unavailable
from pykvpool.fabric.addresses import MAX_SOCKET_PATH_BYTES
from pykvpool.fabric.shm_wire import MAX_PACKET_BYTES

#: Descriptors beside one message: memory and control page.
MAX_DESCRIPTORS = 2
#: Connections the kernel holds between two accepts.
BACKLOG = 128


def check_path(path: Path, what: str, option: str) -> None:
    """Raises `ConfigError` where no socket can be. `what` is the socket's for messages, `option` what a user changes to
    have it elsewhere."""
    if not path.is_absolute():
        raise ConfigError(f"the {what} socket path {str(path)!r} must be absolute ({option})")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"the {what} socket path {str(path)!r} has over {MAX_SOCKET_PATH_BYTES} bytes: shorten {option}"
        )


def listen_at(path: Path, what: str, option: str) -> socket.socket:
    """A listening socket for this user alone; a file that nobody listens at any more is replaced.

    Raises `ConfigError`; arguments as for `check_path`.
    """
    check_path(path, what, option)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_stale(path, option)
        sock.bind(str(path))
        path.chmod(0o600)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen at {path}: {error.strerror}: choose another {option}") from error
    except ConfigError:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path, option: str) -> None:
    """A socket file that nobody listens at is left from a process that died. Raises `ConfigError` if one does."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise ConfigError(f"{path} is in use ({error.strerror}): choose another {option}") from error
    raise ConfigError(f"another process listens at {path}: choose another {option}")


@dataclass(frozen=True, slots=True)
class Packet:
    data: bytes
    descriptors: tuple[int, ...] = ()

    def close_descriptors(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class PacketSocket:
    """Owns a connected socket. After any failure it is dead: every later call fails the same way."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop = loop
        self._waiting: asyncio.Future[Packet] | None = None
        #: Why this socket is dead; None: it is not.
        self.failure: PoolError | None = None

    async def connect(self, path: str) -> None:
        """To a socket that listens at `path`. Raises `Unavailable`, with the `errno` in its fields."""
        try:
            await self._loop.sock_connect(self._socket, path)
        except OSError as error:
            reason = error.strerror or error
            raise Unavailable(f"nobody listens there ({reason})", errno=error.errno) from error

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one packet now. Raises `Unavailable` when the peer is gone or does not read."""
        if self.failure is not None:
            raise self.failure
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._socket.sendmsg([data], rights)
        except OSError as error:
            # Not closed here: what the peer said before it left is still to be read, a goodbye for one.
            raise Unavailable(f"the peer is gone or does not read: {error.strerror}") from error

    async def receive(self) -> Packet:
        """The next packet. Raises `Unavailable` when the peer hung up, `ProtocolError` for one that is too big."""
        while True:
            if self.failure is not None:
                raise self.failure
            packet = self._receive_now()
            if packet is not None:
                return packet
            self._waiting = self._loop.create_future()
            self._loop.add_reader(self._socket, self._on_readable)
            try:
                await self._waiting
            finally:
                self._waiting = None
                if self.failure is None:
                    self._loop.remove_reader(self._socket)

    async def send_message(self, message: bytes) -> None:
        """As `pykvpool.fabric.handshake.Channel`."""
        self.send(message)

    async def receive_message(self, header_bytes: int, body_bytes: Callable[[bytes], int]) -> bytes:
        """As `pykvpool.fabric.handshake.Channel`: a packet is a message."""
        packet = await self.receive()
        if packet.descriptors:
            packet.close_descriptors()
            raise ProtocolError("descriptors in the handshake")
        if len(packet.data) != header_bytes + body_bytes(packet.data[:header_bytes]):
            raise ProtocolError("a handshake message is not as long as its header says")
        return packet.data

    def close(self, failure: PoolError) -> None:
        """Harmless twice; a pending `receive` fails with `failure`."""
        if self.failure is not None:
            return
        self.failure = failure
        if self._waiting is not None:
            self._loop.remove_reader(self._socket)
            if not self._waiting.done():
                self._waiting.set_exception(failure)
        self._socket.close()

    def _on_readable(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._loop.remove_reader(self._socket)
            self._waiting.set_result(Packet(b""))

    def _receive_now(self) -> Packet | None:
        """A packet if there is one. Closes the socket on what cannot be a packet of ours."""
        try:
            try:
                data, rights, flags, _ = self._recvmsg()
            except ConnectionResetError:
                # The peer left without reading all of ours; the kernel says so once, before what it said last.
                data, rights, flags, _ = self._recvmsg()
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._fail(Unavailable(f"the connection broke: {error.strerror}")) from error
        packet = Packet(data, _descriptors(rights))
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            packet.close_descriptors()
            raise self._fail(ProtocolError(f"a packet over {MAX_PACKET_BYTES} bytes or with too many descriptors"))
        if not data:
            packet.close_descriptors()
            raise self._fail(Unavailable("the peer closed the connection"))
        return packet

    def _recvmsg(self) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
        space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
        return self._socket.recvmsg(MAX_PACKET_BYTES, space, socket.MSG_CMSG_CLOEXEC)

    def _fail(self, failure: PoolError) -> PoolError:
        """The socket stays open for a last word on protocol errors; a broken one is closed."""
        if not isinstance(failure, ProtocolError):
            self.close(failure)
        return failure


def _descriptors(rights: Sequence[tuple[int, int, bytes]]) -> tuple[int, ...]:
    found = array.array("i")
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return tuple(found)
