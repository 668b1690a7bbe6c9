"""How an engine's process comes to a node: a socket is found, both prove who they are, the ring and a stream change
hands. What is said on the stream afterwards is `rank`'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pykvpool.errors import PoolError, Unavailable
from pykvpool.fabric.base import Peer
from pykvpool.fabric.handshake import HANDSHAKE_S, Identity, introduce
from pykvpool.fabric.packet_socket import PacketSocket
from pykvpool.host.agent import wire
from pykvpool.host.agent.ring import RingFile
from pykvpool.host.agent.server import open_stream
from pykvpool.runtime import Runtime
from pykvpool.transport.base import Stream

#: Bytes of the ring unless a block needs more; pages are taken as they are used.
RING_BYTES = 64 << 20
#: Of a connect: no file there, or one that a killed process left.
_NOBODY = (errno.ENOENT, errno.ECONNREFUSED)


@dataclass(frozen=True, slots=True)
class Where:
    """Which node an engine's process wants, and as whom."""

    #: Of this engine process, for people.
    name: str
    #: Paths of sockets at which a node may be, in the order in which they are tried.
    find: Callable[[], Sequence[str]]
    #: Addresses of masters: only a node of a pool with one of them will do. Empty: any.
    masters: tuple[str, ...] = ()
    cluster: str = ""
    token: str | None = None
    #: Copies of each block.
    replicas: int = 1
    #: Memory through which blocks pass, taken as it is used; it grows for large blocks.
    ring_bytes: int = RING_BYTES
    #: What to say, and to advise, where no node listens; empty: only where that was.
    absent: str = ""


@dataclass(frozen=True, slots=True)
class Attached:
    """A node took us. Ring and stream are the caller's to close."""

    #: Its name.
    node: str
    stream: Stream
    ring: RingFile
    #: It reaches the pool.
    connected: bool


async def attach(where: Where, ring_bytes: int, runtime: Runtime) -> Attached:
    """To the first node that takes us. Raises `Unavailable` that says why none did."""
    tried: list[str] = []
    dead: list[str] = []
    for path in where.find():
        try:
            return await _attach_at(path, where, ring_bytes, runtime)
        except PoolError as error:
            left_behind = error.fields.get("errno") in _NOBODY
            (dead if left_behind else tried).append(f"{path}: {error}")
    if tried:  # what killed nodes left is no news
        raise Unavailable("; ".join(tried))
    raise Unavailable(where.absent or "; ".join(dead) or "no node was found on this host")


async def _attach_at(path: str, where: Where, ring_bytes: int, runtime: Runtime) -> Attached:
    with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as always:
        ring = RingFile(ring_bytes)
        on_failure.callback(ring.close)
        packets = PacketSocket(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), asyncio.get_running_loop())
        always.callback(packets.close, Unavailable("it goes on on the stream"))
        ours, theirs = socket.socketpair()
        always.callback(ours.close)
        always.callback(theirs.close)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await packets.connect(path)
                token = where.token.encode() if where.token else None
                identity = Identity(Peer(where.name, runtime.new_incarnation(), True), where.cluster, token)
                await introduce(packets, identity.handshake(runtime))
                offer = await _offer(packets, where)
                packets.send(wire.encode(wire.Attach(ring.size_bytes, where.replicas)), [ring.fd, theirs.fileno()])
                theirs.close()
                stream = await open_stream(ours.detach(), path)
                on_failure.callback(stream.abort)
                frame = await stream.recv()
        except TimeoutError:
            raise Unavailable(f"no answer within {HANDSHAKE_S:g} s") from None
        state = wire.decode_from_node(frame) if frame is not None else None
        if not isinstance(state, wire.State):
            raise Unavailable("the node ended the attachment")
        on_failure.pop_all()
        return Attached(offer.node, stream, ring, state.connected)


async def _offer(packets: PacketSocket, where: Where) -> wire.Offer:
    """Of which pool is this node? Raises `Unavailable` for another one than is wanted."""
    packet = await packets.receive()
    packet.close_descriptors()
    offer = wire.decode_offer(packet.data)
    if where.masters and not set(where.masters) & set(offer.masters):
        raise Unavailable(f"the node {offer.node!r} is of another pool, at {' or '.join(offer.masters)}")
    return offer
