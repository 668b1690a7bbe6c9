"""A UNIX packet socket on the event loop: whole messages, with file descriptors beside them.

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

from pykvpool.errors import PoolError, ProtocolError, Unavailable
from pykvpool.fabric.shm_wire import MAX_PACKET_BYTES

#: Descriptors beside one message: memory and control page.
MAX_DESCRIPTORS = 2


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
