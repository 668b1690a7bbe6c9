"""The owner's end of the shm fabric: hands descriptors of its memory to processes of the same host and user.

It is asked once per peer and mount; after that peers copy on their own. So what it can end is *beginning*: withdrawing
clears a control word that every peer looks at before it copies. Fencing asks the peer to drop its map, and returns when
the peer says that its copies have ended, when it says goodbye, or when its process is gone (by pidfd), whichever comes
first. It never returns on time alone.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import socket
from pathlib import Path

from pykvpool.errors import Closed, NotSupported, PoolError, ProtocolError, Refused, Unavailable
from pykvpool.fabric.addresses import ShmAddress, host_id
from pykvpool.fabric.base import Exported, Peer
from pykvpool.fabric.exports import ExportTable
from pykvpool.fabric.handshake import HANDSHAKE_S, ServerHandshake, new_nonce, welcome_peer
from pykvpool.fabric.packet_socket import PacketSocket, check_path, listen_at
from pykvpool.fabric.shm_peers import PeerProcess, ShmPeer
from pykvpool.fabric.shm_wire import (
    CONTROL_BYTES,
    CONTROL_WORD,
    Goodbye,
    Mapped,
    MapRefused,
    MapRequest,
    Unmap,
    Unmapped,
    decode,
)
from pykvpool.fabric.tcp_listen import Acceptor
from pykvpool.model.ids import Generation
from pykvpool.runtime import Runtime, drain

_log = logging.getLogger("pykvpool.fabric.shm")

SCHEME = "shm"
#: Processes of one host that map at a time.
MAX_PEERS = 1024


class _Control:
    """The control page of one mount: the word that says whether its generation stands."""

    def __init__(self, generation: Generation) -> None:
        self.fd = os.memfd_create("pykvpool-control", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, CONTROL_BYTES)
        self._page = mmap.mmap(self.fd, CONTROL_BYTES)
        CONTROL_WORD.pack_into(self._page, 0, generation)

    def clear(self) -> None:
        """From now on no peer begins anything in this generation."""
        CONTROL_WORD.pack_into(self._page, 0, 0)
        self._page.close()
        os.close(self.fd)


class ShmServer:
    """Offers mounts to processes of this host and user.

    Args:
        path: absolute path for the UNIX socket, in a directory that only this user can write to.
        token: as for tcp.
    """

    scheme = SCHEME

    def __init__(self, runtime: Runtime, path: str, *, cluster: str = "", token: str | None = None) -> None:
        self._runtime = runtime
        self._path = Path(path)
        check_path(self._path, "shm", "--shm-dir")
        self.cluster = cluster
        self._token = token.encode() if token else None
        self._table = ExportTable()
        self._controls: dict[Generation, _Control] = {}
        #: Peers whose process may still hold a map, in order of arrival; values mean nothing.
        self._peers: dict[ShmPeer, None] = {}
        self._acceptor: Acceptor | None = None
        #: Open connections, with the task that serves each.
        self._connections: dict[PacketSocket, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Listen. Raises `ConfigError`."""
        sock = listen_at(self._path, "shm", "--shm-dir")
        self._acceptor = Acceptor(sock, asyncio.get_running_loop(), self._on_connection)

    def export(self, memory: Exported) -> str:
        """Raises `NotSupported` for memory without a descriptor."""
        if memory.fileno() < 0:
            raise NotSupported("this memory has no descriptor to share: shm needs a memfd")
        self._table.add(memory)
        self._controls[memory.generation] = _Control(memory.generation)
        return ShmAddress(host_id(), str(self._path)).endpoint

    async def withdraw(self, generation: Generation) -> None:
        """When this returns no peer begins anything new; maps that live peers hold go as soon as they answer."""
        if self._table.remove(generation) is None:
            return
        self._controls.pop(generation).clear()
        for peer in self._peers:
            if peer.maps(generation):
                peer.tell(Unmap(generation, gone=True))

    async def fence(self, name: str, incarnation: int, generation: Generation, ban: bool) -> None:
        if ban:
            self._table.ban(name, incarnation)
        writers = [
            shm_peer
            for shm_peer in self._peers
            if shm_peer.is_called(name, incarnation) and shm_peer.peer.writable and shm_peer.maps(generation)
        ]
        for writer in writers:
            writer.tell(Unmap(generation, gone=False))
        for writer in writers:
            await writer.released(generation)

    async def close(self) -> None:
        """Withdraws everything and hangs up."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
            self._path.unlink(missing_ok=True)
        for generation in self._table.generations():
            await self.withdraw(generation)
        for peer in list(self._peers):
            peer.close(Closed("the shm fabric server is closed"))
        self._peers.clear()
        connections, self._connections = self._connections, {}
        for packets in connections:
            packets.close(Closed("the shm fabric server is closed"))
        for task in connections.values():
            await drain(task)

    def _on_connection(self, sock: socket.socket) -> None:
        if len(self._connections) >= MAX_PEERS:
            _log.warning("shm connection refused: %d are open", MAX_PEERS)
            sock.close()
            return
        packets = PacketSocket(sock, asyncio.get_running_loop())
        self._connections[packets] = asyncio.ensure_future(self._run(sock, packets))

    async def _run(self, sock: socket.socket, packets: PacketSocket) -> None:
        """The life of one connection; whatever goes wrong costs this connection only."""
        shm_peer: ShmPeer | None = None
        failure: PoolError = Unavailable("the connection is closed")
        try:
            if packets.failure is not None:
                raise packets.failure  # we were closed before this began
            process = PeerProcess.of(sock)
            try:
                peer = await self._handshake(packets)
            except BaseException:
                process.close()
                raise
            shm_peer = ShmPeer(peer, packets, process, on_gone=lambda gone_peer: self._peers.pop(gone_peer, None))
            self._peers[shm_peer] = None
            while True:
                packet = await packets.receive()
                packet.close_descriptors()
                self._on_message(shm_peer, decode(packet.data))
        except Unavailable:
            pass  # hung up: with a goodbye, or else its process is watched until it is gone
        except PoolError as error:
            failure = error
            if packets.failure is None:
                _log.warning("shm connection ended: %s", error)
        except Exception as error:  # noqa: BLE001  # a bug must not take other connections with it
            _log.exception("shm connection failed")
            failure = Unavailable(f"the owner failed: {type(error).__name__}")
        finally:
            packets.close(failure)
            self._connections.pop(packets, None)
            if shm_peer is not None:
                shm_peer.hung_up()

    async def _handshake(self, packets: PacketSocket) -> Peer:
        handshake = ServerHandshake(self.cluster, self._token, new_nonce(self._runtime), self._admit)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                return await welcome_peer(packets, handshake)
        except TimeoutError:
            raise ProtocolError(f"no handshake within {HANDSHAKE_S:g} s") from None

    def _admit(self, peer: Peer) -> PoolError | None:
        return Refused(f"the session of {peer.name!r} is over") if self._table.is_banned(peer) else None

    def _on_message(self, shm_peer: ShmPeer, message: object) -> None:
        match message:
            case MapRequest(generation=generation):
                self._on_map(shm_peer, generation)
            case Unmapped(generation=generation):
                shm_peer.release(generation)
            case Goodbye():
                shm_peer.release_all()
            case _:
                raise ProtocolError(f"an unexpected {type(message).__name__} from a peer")

    def _on_map(self, shm_peer: ShmPeer, generation: Generation) -> None:
        if shm_peer.maps(generation):
            raise ProtocolError("a generation is mapped once per connection")
        refusal = self._admit(shm_peer.peer)
        try:
            if refusal is not None:
                raise refusal
            memory = self._table.find(generation).memory
        except PoolError as error:
            shm_peer.tell(MapRefused(generation, error.code, error.message))
            return
        # A reader gets a descriptor that the kernel will not map writable, and so do all for the control page.
        mode = os.O_RDWR if shm_peer.peer.writable else os.O_RDONLY
        descriptors = [_reopen(memory.fileno(), mode), _reopen(self._controls[generation].fd, os.O_RDONLY)]
        try:
            shm_peer.tell_mapped(Mapped(generation, memory.size_bytes), descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _reopen(fd: int, mode: int) -> int:
    """A descriptor of the same memory, opened anew with `mode`."""
    return os.open(f"/proc/self/fd/{fd}", mode | os.O_CLOEXEC)
