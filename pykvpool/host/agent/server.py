"""Where a node waits for the engines of its host: a UNIX socket, and one connection to the pool for all of them.

Transfers of all engines share one session with the master, their lookups another, so that a lookup never queues behind
bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path

from pykvpool.errors import PoolError, ProtocolError, Unavailable
from pykvpool.fabric.handshake import HANDSHAKE_S, ServerHandshake, new_nonce, welcome_peer
from pykvpool.fabric.packet_socket import Packet, PacketSocket, check_path, listen_at
from pykvpool.fabric.tcp_listen import Acceptor
from pykvpool.host.access import PoolAccess, PoolLine
from pykvpool.host.agent import wire
from pykvpool.host.agent.attachment import Attachment
from pykvpool.host.agent.ring import RingMap
from pykvpool.model.keys import Scope
from pykvpool.protocol.frames import MAX_FRAME_BYTES
from pykvpool.runtime import Runtime, drain
from pykvpool.transport.sockets import SocketStream

log = logging.getLogger("pykvpool.host.agent")

#: Engine processes of one host at a time.
MAX_ENGINES = 256
OPTION = "--engine-socket"


class AgentServer:
    """`start` listens, `close` ends every attachment and says goodbye to the pool."""

    def __init__(self, path: str, node: str, access: PoolAccess, runtime: Runtime) -> None:
        """`access`: to the pool; its name is the session's, its cluster and token are asked of engines too."""
        self._path = Path(path)
        check_path(self._path, "engines'", OPTION)
        self._node = node
        self._access = access
        self._runtime = runtime
        self._line = PoolLine(access, runtime)
        self._lookup_line = PoolLine(dataclasses.replace(access, name=f"{access.name}-lookups"), runtime)
        self._connecting = False
        self._acceptor: Acceptor | None = None
        #: Which file is ours: a later node may have put another in its place.
        self._inode = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._attached: dict[Attachment, None] = {}

    @property
    def path(self) -> str:
        return str(self._path)

    @property
    def serves(self) -> bool:
        """An engine has come, and the pool was asked for."""
        return self._connecting

    @property
    def engines(self) -> list[str]:
        """Names of the engine processes that are attached, in order of arrival."""
        return [attachment.name for attachment in self._attached]

    async def start(self) -> None:
        """Raises `ConfigError`."""
        sock = listen_at(self._path, "engines'", OPTION)
        self._inode = self._path.stat().st_ino
        self._acceptor = Acceptor(sock, asyncio.get_running_loop(), self._on_connection)

    async def close(self) -> None:
        """Harmless twice."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
            with contextlib.suppress(FileNotFoundError):
                if self._path.stat().st_ino == self._inode:
                    self._path.unlink()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for task in tasks:
            await drain(task)
        await self._line.close()
        await self._lookup_line.close()

    def fences(self, asking: Attachment, scopes: Sequence[Scope]) -> Iterable[Awaitable[object]]:
        """See `pykvpool.host.agent.attachment.Others`."""
        return [other.work.fence_and_wait(scopes) for other in self._attached if other is not asking]

    def _on_connection(self, sock: socket.socket) -> None:
        if len(self._tasks) >= MAX_ENGINES:
            log.warning("an engine is refused: %d are attached", len(self._tasks))
            sock.close()
            return
        packets = PacketSocket(sock, asyncio.get_running_loop())
        task = asyncio.get_running_loop().create_task(self._run(packets), name="pykvpool attachment")
        self._tasks[task] = None

        def over(done: asyncio.Task[None]) -> None:
            del self._tasks[done]
            packets.close(Unavailable("the attachment has ended"))

        task.add_done_callback(over)

    async def _run(self, packets: PacketSocket) -> None:
        """The life of one attachment; whatever goes wrong costs this one only."""
        name = "an engine"
        try:
            handshake = ServerHandshake(
                self._access.cluster, self._token, new_nonce(self._runtime), lambda peer: None
            )  # fmt: skip
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    name = (await welcome_peer(packets, handshake)).name
                    packets.send(wire.encode(wire.Offer(self._node, self._access.masters)))
                    packet = await packets.receive()
            except TimeoutError:
                raise ProtocolError(f"no handshake within {HANDSHAKE_S:g} s") from None
            attachment = await self._attach(name, packet)
            packets.close(Unavailable("it goes on on the stream"))
            self._connect()
            self._attached[attachment] = None
            log.info("engine process %r is attached", name)
            try:
                await attachment.serve()
            finally:
                del self._attached[attachment]
            log.info("engine process %r is gone", name)
        except Unavailable as error:
            log.info("engine process %r is gone: %s", name, error)
        except PoolError as error:
            log.warning("the attachment of %r ended: %s", name, error)
        except Exception:
            log.exception("the attachment of %r met a bug in the pool", name)

    def _connect(self) -> None:
        """To the pool, when the first engine comes: a node without engines has no sessions for them."""
        if not self._connecting:
            self._connecting = True
            self._line.start()
            self._lookup_line.start()

    @property
    def _token(self) -> bytes | None:
        return self._access.token.encode() if self._access.token else None

    async def _attach(self, name: str, packet: Packet) -> Attachment:
        """Take the ring and the stream. Raises `ProtocolError`."""
        try:
            message = wire.decode_attach(packet.data)
            if len(packet.descriptors) != wire.ATTACH_DESCRIPTORS:
                raise ProtocolError(f"{len(packet.descriptors)} descriptors came with an attach: two are due")
            ring_fd, stream_fd = packet.descriptors
            ring = RingMap(ring_fd, message.ring_bytes)
            try:
                stream = await open_stream(os.dup(stream_fd), name)
            except OSError as error:
                ring.close()
                raise ProtocolError(f"what came as a stream is none: {error}") from error
        finally:
            packet.close_descriptors()
        return Attachment(name, stream, ring, message.replicas, self._line, self._lookup_line, self)


async def open_stream(fd: int, peer: str) -> SocketStream:
    """A stream of frames over a connected socket, which becomes the stream's. Raises `OSError`."""
    sock = socket.socket(fileno=fd)
    try:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_unix_connection(lambda: SocketStream(lambda transport: peer), sock=sock)
    except (OSError, ValueError) as error:
        sock.close()
        raise OSError(str(error)) from error
    stream.allow(MAX_FRAME_BYTES)
    return stream
