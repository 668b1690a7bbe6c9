"""The owner's end of the rdma fabric: registers mounts, makes queue pairs for peers, and destroys them.

Bytes pass without it. What it holds is the power to end: a queue pair that is destroyed lets nothing more arrive, so
`fence` and `withdraw` destroy the ones concerned and return when the card has let go of them, which is exact. Whoever
is connected is told on its line, as its card would only notice that nobody answers.

It knows generations and peers; nothing of objects, leases or put_ids: nobody asks it before bytes land.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Callable

from pykvpool.errors import (
    Closed,
    ConfigError,
    Overloaded,
    PoolError,
    ProtocolError,
    Refused,
    TransferFailed,
    Unavailable,
)
from pykvpool.fabric.addresses import HostPort
from pykvpool.fabric.base import Exported, Peer
from pykvpool.fabric.exports import ExportTable, gone
from pykvpool.fabric.handshake import HANDSHAKE_S, ServerHandshake, new_nonce, welcome_peer
from pykvpool.fabric.rdma.line import Line
from pykvpool.fabric.rdma.mounted import RegisteredMount
from pykvpool.fabric.rdma.owner_session import OwnerSession, Served
from pykvpool.fabric.rdma.rails import Device, Rail, Rails, require_verbs
from pykvpool.fabric.rdma.settings import SCHEME, RdmaSettings
from pykvpool.fabric.tcp_listen import Acceptor, advertised, open_listener
from pykvpool.fabric.tcp_parting import part
from pykvpool.fabric.tcp_socket import HandshakeStream, StreamSocket, tune
from pykvpool.fabric.verbs import CompletionQueue, VerbsError
from pykvpool.memory.locked import LockedMemory
from pykvpool.model.ids import Generation
from pykvpool.runtime import Runtime, drain

log = logging.getLogger("pykvpool.fabric.rdma")

#: Lines at a time: engines of a large cluster, one each.
MAX_LINES = 4096
#: How long a fence waits for its peer to have heard of it. One that is stopped or gone does not answer, and need not.
HEARD_S = 0.5
#: A queue pair that could not be destroyed is tried again so often.
DESTROY_AGAIN_S = 0.1


class RdmaServer:
    """Offers mounts over RDMA.

    Args:
        listen: ``host:port`` for the lines; port 0 takes any free one.
        advertise: ``host`` or ``host:port`` for descriptors, where it differs from `listen`.
        cluster, token: as for tcp.

    Raises `NotSupported` where there is no verbs binding or no device.
    """

    scheme = SCHEME

    def __init__(
        self,
        runtime: Runtime,
        listen: str = "127.0.0.1:0",
        *,
        advertise: str = "",
        cluster: str = "",
        token: str | None = None,
        settings: RdmaSettings | None = None,
    ) -> None:
        settings = settings or RdmaSettings()
        self._runtime = runtime
        self._listen = HostPort.parse(listen, SCHEME)
        self._advertise = advertise
        self.cluster = cluster
        self._token = token.encode() if token else None
        self._rails = Rails(require_verbs(settings), settings, self._on_rail_lost)
        self._table = ExportTable()
        self._mounts: dict[Generation, RegisteredMount] = {}
        #: What queue pairs here complete into: nothing ever does, as they send nothing.
        self._queues: dict[Device, CompletionQueue] = {}
        #: Open lines, with the task that serves each.
        self._lines: dict[StreamSocket, asyncio.Task[None]] = {}
        #: Those whose handshake is over, in order of arrival; values mean nothing.
        self._sessions: dict[OwnerSession, None] = {}
        #: Ended mounts of which a device did not let go.
        self._left: list[RegisteredMount] = []
        self._acceptor: Acceptor | None = None
        self._address: HostPort | None = None

    @property
    def endpoint(self) -> str:
        """The address that descriptors carry. Raises `Closed` before `start`."""
        if self._address is None:
            raise Closed("the rdma fabric server was not started")
        return f"{SCHEME}://{self._address}"

    async def start(self) -> None:
        """Open the devices and listen. Raises `ConfigError`."""
        loop = asyncio.get_running_loop()
        try:
            self._rails.refresh()
        except Unavailable as error:
            self._rails.close_all()
            raise ConfigError(f"{error.message}: bring one up, or leave rdma out of the node's fabrics") from error
        try:
            sock = await open_listener(self._listen, loop, "rdma_listen")
            try:
                self._address = advertised(self._listen, self._advertise, sock.getsockname()[1])
            except PoolError:
                sock.close()
                raise
        except BaseException:
            self._rails.close_all()
            raise
        self._acceptor = Acceptor(sock, loop, self._on_connection)

    def export(self, memory: Exported) -> str:
        """Register a mount with every device; takes time with its size. Raises `ConfigError` where that is refused, or
        would be for want of memory that may be locked."""
        endpoint = self.endpoint
        self._clear_away()
        devices = list(dict.fromkeys(rail.device for rail in self._rails.active))
        if not devices:
            raise ConfigError("no rdma port of this host is up")
        _check_locked(self._rails.locked(), memory.size_bytes, len(devices))
        mount = RegisteredMount(memory, devices)
        self._table.add(memory)
        self._mounts[memory.generation] = mount
        return endpoint

    async def withdraw(self, generation: Generation) -> None:
        self._table.remove(generation)
        mount = self._mounts.get(generation)
        if mount is None:
            return
        await self._end_surely(gone(generation), lambda _session, served: served.generation == generation)
        self._mounts.pop(generation, None)
        self._let_go_of(mount)

    async def fence(self, name: str, incarnation: int, generation: Generation, ban: bool) -> None:
        if ban:
            self._table.ban(name, incarnation)
        # Without a ban the peer may go on: what was cut off is for it to begin anew, with a new put.
        reason = Refused if ban else TransferFailed
        unheard = await self._end_surely(
            reason(f"the owner fenced the session of {name!r}"),
            lambda session, served: (
                (session.peer.name, session.peer.incarnation) == (name, incarnation) and served.generation == generation
            ),
        )
        # It is fenced. A peer that lives should know before anybody acts on it, or what it begins next is cut off too.
        if unheard:
            await asyncio.wait(unheard, timeout=HEARD_S)

    async def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        lines, self._lines = self._lines, {}
        for stream in lines:
            stream.abort(Closed("the rdma fabric server is closed"))
        for task in lines.values():
            await drain(task)
        for generation in list(self._mounts):
            await self.withdraw(generation)
        self._clear_away()
        for device, queue in self._queues.items():
            try:
                device.let_go(queue.close)
            except VerbsError as error:
                log.warning("rdma: %s stays in use: %s", device.name, error)
        self._queues.clear()
        self._rails.close_all()

    # -- what a session asks -------------------------------------------------------------------------------------

    @property
    def rails(self) -> list[Rail]:
        """Ports that can serve now."""
        try:
            return self._rails.refresh()
        except PoolError as error:
            log.warning("%s", error)
            return []

    def mount(self, generation: Generation) -> RegisteredMount:
        """Raises `SegmentGone`."""
        self._table.find(generation)
        return self._mounts[generation]

    def admit(self, peer: Peer) -> PoolError | None:
        """Why a peer is not welcome."""
        return Refused(f"the session of {peer.name!r} is over") if self._table.is_banned(peer) else None

    def queue(self, device: Device) -> CompletionQueue:
        queue = self._queues.get(device)
        if queue is None:
            queue = self._queues[device] = device.context.completion_queue(1)
        return queue

    # -- ending --------------------------------------------------------------------------------------------------

    def _end(
        self, reason: PoolError, which: Callable[[OwnerSession, Served], bool], *, again: bool = False
    ) -> list[asyncio.Future[None]]:
        """Destroy queue pairs, and tell their peers. When this returns nothing arrives through them. What is done when
        the peers have heard. Raises `VerbsError` where one could not be destroyed; the others are."""
        unheard = []
        refused: VerbsError | None = None
        for session in list(self._sessions):
            try:
                heard = session.end(reason, functools.partial(which, session), again=again)
            except VerbsError as error:
                refused = error
                continue
            if heard is not None:
                unheard.append(heard)
        if refused is not None:
            raise refused
        return unheard

    async def _end_surely(
        self, reason: PoolError, which: Callable[[OwnerSession, Served], bool]
    ) -> list[asyncio.Future[None]]:
        """As `_end`, however long it takes: what it is asked for must not be answered before it is true."""
        complained = False
        while True:
            try:
                return self._end(reason, which)
            except VerbsError as error:
                if not complained:
                    log.error("rdma: a queue pair cannot be destroyed, so its memory stays in use: %s", error)
                complained = True
            await asyncio.sleep(DESTROY_AGAIN_S)

    def _let_go_of(self, mount: RegisteredMount) -> None:
        """No queue pair of a mount is left, so that nothing arrives there; what a device keeps of it, it keeps for
        now."""
        try:
            mount.close()
        except VerbsError as error:
            log.warning("rdma: a mount that has ended stays registered for now: %s", error)
            self._left.append(mount)

    def _clear_away(self) -> None:
        left, self._left = self._left, []
        for mount in left:
            self._let_go_of(mount)

    def _on_rail_lost(self, rail: Rail, error: PoolError) -> None:
        try:
            self._end(error, lambda session, served: served.rail is rail, again=True)
        except VerbsError as refused:  # its peers will find out
            log.warning("rdma: a queue pair of a lost rail cannot be destroyed: %s", refused)
        if rail.device.failure is not None:
            asyncio.get_running_loop().call_soon(self._bury, rail.device)

    def _bury(self, device: Device) -> None:
        """Close a dead device; every queue pair there is destroyed."""
        try:
            for mount in (*self._mounts.values(), *self._left):
                mount.forget(device)
            queue = self._queues.get(device)
            if queue is not None:
                device.let_go(queue.close)
                del self._queues[device]
            self._rails.close(device)
        except VerbsError as error:
            log.warning("rdma: %s is gone and cannot be closed: %s", device.name, error)

    # -- lines ---------------------------------------------------------------------------------------------------

    def _on_connection(self, sock: socket.socket) -> None:
        if len(self._lines) >= MAX_LINES:
            log.warning("rdma line refused: %d are open", MAX_LINES)
            sock.close()
            return
        tune(sock)
        stream = StreamSocket(sock, asyncio.get_running_loop())
        self._lines[stream] = asyncio.ensure_future(self._run(stream))

    async def _run(self, stream: StreamSocket) -> None:
        """The life of one line; whatever goes wrong costs this line and its queue pairs only."""
        session: OwnerSession | None = None
        reason: PoolError = Unavailable("the line is closed")
        try:
            peer = await self._handshake(stream)
            session = OwnerSession(self, peer, Line(stream), self._runtime)
            self._sessions[session] = None
            await session.serve()
        except (Unavailable, Closed):
            pass  # hung up, or we are closing
        except PoolError as error:
            reason = error
            log.warning("rdma line ended: %s", error)
            if session is not None:
                session.gone()
                self._part(session, error)
            await part(stream)
        except Exception as error:  # a bug must not take other lines with it
            log.exception("rdma line failed")
            reason = Unavailable(f"the owner failed: {type(error).__name__}")
        finally:
            stream.abort(reason)
            self._lines.pop(stream, None)
            if session in self._sessions:
                session.gone()
                self._part(session, reason)

    def _part(self, session: OwnerSession, reason: PoolError) -> None:
        """A peer is gone: nothing may arrive in its name any more. Where a device refuses that, the session stays
        known, so that no fence is answered before it is true."""
        try:
            session.end(reason, lambda _served: True, again=False)
        except VerbsError as error:
            log.error("rdma: a queue pair of a peer that has gone cannot be destroyed: %s", error)
            return
        del self._sessions[session]

    async def _handshake(self, stream: StreamSocket) -> Peer:
        handshake = ServerHandshake(self.cluster, self._token, new_nonce(self._runtime), self._admit)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                return await welcome_peer(HandshakeStream(stream), handshake)
        except TimeoutError:
            raise ProtocolError(f"no handshake within {HANDSHAKE_S:g} s") from None

    def _admit(self, peer: Peer) -> PoolError | None:
        if len(self._lines) > MAX_LINES:
            return Overloaded(f"{MAX_LINES} rdma lines are open")
        return self.admit(peer)


def _check_locked(locked: LockedMemory, size_bytes: int, devices: int) -> None:
    """Before any registration is refused. Raises `ConfigError`."""
    shortage = locked.shortage(size_bytes)
    if shortage:
        raise ConfigError(f"rdma: {size_bytes} bytes cannot be registered: {shortage}")
    shortage = locked.shortage(size_bytes * devices)
    if shortage:
        log.warning("rdma: not every one of %d devices will serve %d bytes: %s", devices, size_bytes, shortage)
