"""One peer's line at the owner: its requests, and the queue pairs that were made for it.

A queue pair is made for one generation, in that mount's protection domain, with the rights of the peer: a reader's
cannot be written through. It answers the peer and sends nothing itself, so that ready to receive is as far as it goes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pykvpool.errors import InvalidArgument, Overloaded, PoolError, ProtocolError, TransferFailed, Unavailable
from pykvpool.fabric.base import Peer
from pykvpool.fabric.rdma.line import Line
from pykvpool.fabric.rdma.mounted import RegisteredMount
from pykvpool.fabric.rdma.rails import Device, Rail
from pykvpool.fabric.rdma.wire import (
    Answer,
    Connect,
    Connected,
    Disconnect,
    Disconnected,
    Ended,
    Failed,
    Heard,
    Offer,
    Open,
    Request,
    WireGid,
    WireRail,
)
from pykvpool.fabric.rdma.wire_checks import check_connect
from pykvpool.fabric.verbs import (
    Access,
    CompletionQueue,
    Path,
    QueuePair,
    QueuePairLimits,
    RemoteQueuePair,
    VerbsError,
)
from pykvpool.fabric.verbs.model import MAX_24_BITS
from pykvpool.model.ids import Generation
from pykvpool.runtime import Runtime

log = logging.getLogger("pykvpool.fabric.rdma")

#: Queue pairs of one peer: a few for each pair of rails and each mount it uses here.
MAX_QUEUE_PAIRS_PER_PEER = 1024
#: Room for requests of its own: it has none, but a queue pair must have some.
_LIMITS = QueuePairLimits(send_depth=1, max_sge=1)


class Owner(Protocol):
    """What a session needs of the server."""

    @property
    def rails(self) -> list[Rail]: ...

    def mount(self, generation: Generation) -> RegisteredMount: ...

    def admit(self, peer: Peer) -> PoolError | None: ...

    def queue(self, device: Device) -> CompletionQueue: ...


@dataclass(frozen=True, slots=True)
class Served:
    """A queue pair of the owner's."""

    pair: QueuePair
    generation: Generation
    rail: Rail


class OwnerSession:
    """From the end of the handshake to the end of the line."""

    def __init__(self, owner: Owner, peer: Peer, line: Line, runtime: Runtime) -> None:
        self.peer = peer
        self._owner = owner
        self._line = line
        self._runtime = runtime
        self._handles = itertools.count(1)
        self._served: dict[int, Served] = {}
        self._endings = itertools.count(1)
        #: What was ended and the peer has not said that it heard of.
        self._unheard: dict[int, asyncio.Future[None]] = {}

    async def serve(self) -> None:
        """Answer requests until the line ends; raises why."""
        while True:
            said = await self._line.hear()
            if isinstance(said, Heard):
                self._on_heard(said.number)
                continue
            if not isinstance(said, Open | Connect | Disconnect):
                raise ProtocolError(f"a peer said {type(said).__name__}")
            try:
                self._line.say(self._answer(said))
            except ProtocolError:
                raise
            except PoolError as error:
                self._line.say(Failed(said.request, error.code, error.message))

    def _answer(self, request: Request) -> Answer:
        match request:
            case Open():
                return self._offer(request)
            case Connect():
                return self._connect(request)
            case Disconnect():
                self._destroy(request.handle)
                return Disconnected(request.request)

    def end(self, reason: PoolError, which: Callable[[Served], bool], *, again: bool) -> asyncio.Future[None] | None:
        """Destroy queue pairs and say so. When this returns nothing arrives through them. Raises `VerbsError` where one
        of them could not be destroyed; the others are.

        Returns what is done when the peer has heard of it, or never will; None where there was nothing to destroy.
        """
        destroyed: list[int] = []
        refused: VerbsError | None = None
        for handle in [handle for handle, served in self._served.items() if which(served)]:
            try:
                self._destroy(handle)
                destroyed.append(handle)
            except VerbsError as error:
                refused = error
        heard = self._say_ended(tuple(destroyed), reason, again) if destroyed else None
        if refused is not None:
            raise refused
        return heard

    def _say_ended(self, handles: tuple[int, ...], reason: PoolError, again: bool) -> asyncio.Future[None]:
        number = next(self._endings)
        heard = self._unheard[number] = asyncio.get_running_loop().create_future()
        self._line.say(Ended(number, handles, again, reason.code, reason.message))
        if self._line.failure is not None:
            self.gone()
        return heard

    def gone(self) -> None:
        """The line has ended: nobody hears any more."""
        for number in list(self._unheard):
            self._on_heard(number)

    def _on_heard(self, number: int) -> None:
        heard = self._unheard.pop(number, None)
        if heard is not None and not heard.done():
            heard.set_result(None)

    def _destroy(self, handle: int) -> None:
        served = self._served.get(handle)
        if served is not None:
            served.rail.device.let_go(served.pair.close)
            del self._served[handle]

    def _offer(self, request: Open) -> Offer:
        mount = self._owner.mount(request.generation)
        rails = []
        for rail in self._owner.rails:
            there = mount.find(rail.device)
            if there is not None:
                port = rail.port
                rails.append(
                    WireRail(
                        rail.name,
                        port.link_layer,
                        port.lid,
                        port.active_mtu_bytes,
                        rail.device.read_depth,
                        tuple(WireGid.of(gid) for gid in rail.gids),
                        tuple(region.rkey for region in there.regions),
                    )
                )
        if not rails:
            raise Unavailable("the owner has no rdma port that is up")
        return Offer(request.request, mount.size_bytes, mount.address, mount.chunk_bytes, tuple(rails))

    def _connect(self, request: Connect) -> Connected:
        check_connect(request)
        refusal = self._owner.admit(self.peer)
        if refusal is not None:
            raise refusal
        if len(self._served) >= MAX_QUEUE_PAIRS_PER_PEER:
            raise Overloaded(f"{MAX_QUEUE_PAIRS_PER_PEER} queue pairs are open for this peer")
        mount = self._owner.mount(request.generation)
        rail = next((rail for rail in self._owner.rails if rail.name == request.rail), None)
        there = None if rail is None else mount.find(rail.device)
        if rail is None or there is None:
            raise Unavailable(f"rail {request.rail!r} is not up here (any more)")
        if all(gid.index != request.gid_index for gid in rail.gids):
            raise InvalidArgument(f"rail {rail.name} has no address at index {request.gid_index}")
        psn = self._runtime.random.getrandbits(24) & MAX_24_BITS
        try:
            pair = there.domain.queue_pair(self._owner.queue(rail.device), _LIMITS)
            handle = next(self._handles)
            self._served[handle] = Served(pair, request.generation, rail)
            try:
                self._make_ready(pair, request, rail)
            except BaseException:
                self._destroy(handle)
                raise
        except VerbsError as error:
            raise TransferFailed(error.message) from error
        return Connected(request.request, handle, pair.number, psn)

    def _make_ready(self, pair: QueuePair, request: Connect, rail: Rail) -> None:
        rights = Access.REMOTE_READ | (Access.REMOTE_WRITE if self.peer.writable else Access.NONE)
        pair.to_init(rail.number, rights)
        read_depth = min(rail.device.read_depth, request.read_depth)
        path = Path(rail.number, request.gid_index, rail.port.active_mtu_bytes, read_depth=read_depth)
        there = RemoteQueuePair(request.number, request.psn, request.gid, request.lid, request.mtu_bytes)
        pair.to_ready_to_receive(there, path)
