"""The engine's end of an attachment, on the loop of a small thread: says jobs, copies between the ring and the tensors.

It alone touches the engine's memory, and only for jobs that are under way, between two turns of its loop. So a job that
is ended here (deadline, fence, lost node) is over at once: whatever the node still does with it ends in the ring.

    searching ──► attached ──► (node gone, or silent) ──► its jobs fail, the ring goes ──► searching
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
import threading
from collections.abc import Callable, Sequence

from pykvpool.errors import Closed, DeadlineExceeded, PoolError, TransferFailed, Unavailable
from pykvpool.fabric.base import Peer
from pykvpool.fabric.handshake import HANDSHAKE_S, Identity, introduce
from pykvpool.fabric.packet_socket import PacketSocket
from pykvpool.host.agent import wire
from pykvpool.host.agent.ring import RingFile, places_of
from pykvpool.host.agent.server import open_stream
from pykvpool.host.port import Answer, BlockGroup, Lapsed, LoadDone, LoadJob, Lookup, Removed, Run, SaveDone, SaveJob
from pykvpool.host.work import Emit
from pykvpool.model.keys import Scope
from pykvpool.runtime import Runtime
from pykvpool.transport.backoff import Backoff
from pykvpool.transport.base import Stream

log = logging.getLogger("pykvpool.host.agent")

#: Bytes of the ring unless a block needs more; pages are taken as they are used.
RING_BYTES = 64 << 20
#: Blocks of the largest size that a ring holds at least.
RING_BLOCKS = 4
#: A node is asked for a sign of life this often (s), and given up when it has let so many in a row go unanswered: it is
#: on this host, a healthy one answers within milliseconds. They are counted, not timed: when the whole host stands
#: still for a while, the engine's process with it, that says nothing about the node.
PING_S = 1.0
UNANSWERED = 6
#: How much longer than the node a job's deadline is waited for here (s).
GRACE_S = 1.0


@dataclasses.dataclass(slots=True)
class _UnderWay:
    """A job that was said to the node and has no end yet."""

    job: SaveJob | LoadJob
    began: float
    timer: asyncio.TimerHandle


@dataclasses.dataclass(frozen=True, slots=True)
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


class Rank:
    """All methods are for the loop's thread. Events go to `emit`."""

    def __init__(self, where: Where, runtime: Runtime, emit: Emit) -> None:
        self._where = where
        self._name = where.name
        self._runtime = runtime
        self._emit = emit
        self._jobs: dict[int, _UnderWay] = {}
        #: Lookups that were not released, and whether they were answered.
        self._lookups: dict[int, bool] = {}
        #: Scopes of which every node is to tell.
        self._watched: dict[Scope, None] = {}
        self._resets: dict[int, asyncio.Future[None]] = {}
        self._last_reset = 0
        self._ring_bytes = where.ring_bytes
        self._ring: RingFile | None = None
        self._stream: Stream | None = None
        self._trouble: PoolError = Unavailable("not attached to a node yet")
        self._keeper: asyncio.Task[None] | None = None
        #: Signs of life asked for since the node said anything.
        self._unanswered = 0
        #: Whoever waits for the end of all saves.
        self._idle = asyncio.Event()
        #: Name of the node that took us last.
        self.node = ""
        #: There is a node, and it reaches the pool. Any thread may ask.
        self.connected = False
        #: The first search for a node is over. Any thread may wait.
        self.searched = threading.Event()

    @property
    def attached(self) -> bool:
        """There is a node at the other end. Any thread may ask."""
        return self._stream is not None

    def start(self) -> None:
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"pykvpool rank {self._name}")

    # -- what the port asks ----------------------------------------------------------------------------------------

    def save(self, job: SaveJob) -> None:
        self._begin(job, lambda: wire.Save(dataclasses.replace(job, groups=_without_places(job.groups))))

    def load(self, job: LoadJob) -> None:
        self._begin(job, lambda: wire.Load(dataclasses.replace(job, groups=_without_places(job.groups))))

    def lookup(self, lookup: Lookup) -> None:
        if not self.connected or not self._say(wire.Ask(lookup)):
            self._emit(_unanswered(lookup.lookup_id, self._trouble))
            return
        self._lookups[lookup.lookup_id] = False

    def release(self, lookup_id: int) -> None:
        if lookup_id in self._lookups:
            del self._lookups[lookup_id]
            self._say(wire.Release(lookup_id))

    def watch(self, scopes: tuple[Scope, ...]) -> None:
        self._watched.update(dict.fromkeys(scopes))
        self._say(wire.Watch(scopes))

    def fence(self) -> None:
        """Every save that was said before is ended by the node, and reported as any."""
        self._say(wire.Fence())

    async def reset(self, scopes: tuple[Scope, ...], timeout_s: float) -> None:
        """Raises what kept it from being sure."""
        self._last_reset += 1
        number = self._last_reset
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resets[number] = future
        try:
            if not self._say(wire.Reset(number, scopes, int(timeout_s * 1_000))):
                raise self._trouble
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise DeadlineExceeded(f"the reset was not over within {timeout_s:g} s") from None
        finally:
            del self._resets[number]

    async def close(self, drain_s: float) -> None:
        """Let saves finish for at most `drain_s`, then end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                while any(isinstance(under_way.job, SaveJob) for under_way in self._jobs.values()):
                    self._idle.clear()
                    await self._idle.wait()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._lose(Closed("the port was closed"))

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _begin(self, job: SaveJob | LoadJob, message: Callable[[], wire.FromEngine]) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(job.timeout_ms / 1_000 + GRACE_S, self._late, job.job_id)
        self._jobs[job.job_id] = _UnderWay(job, loop.time(), timer)
        if not self.connected or not self._fits(job) or not self._say(message()):
            self._fail(job.job_id, self._trouble)

    def _fits(self, job: SaveJob | LoadJob) -> bool:
        """The ring holds a few of its blocks; else a larger one is made, with the next attachment."""
        largest = max((group.block_bytes for group in job.groups), default=0)
        if largest * RING_BLOCKS <= self._ring_bytes:
            return True
        self._ring_bytes = largest * RING_BLOCKS
        log.info("%s attaches anew, with a ring of %d bytes for its blocks", self._name, self._ring_bytes)
        self._trouble = Unavailable("the ring was too small for the blocks: it is being replaced")
        self.connected = False
        if self._stream is not None:
            self._stream.abort()
        return False

    def _late(self, job_id: int) -> None:
        self._say(wire.Drop(job_id))
        self._fail(job_id, DeadlineExceeded("the job was not over within its time"))

    def _fail(self, job_id: int, error: PoolError) -> None:
        under_way = self._end(job_id)
        if under_way is None:
            return
        seconds = asyncio.get_running_loop().time() - under_way.began
        if isinstance(under_way.job, LoadJob):
            self._emit(LoadDone(job_id, False, 0, error.message, error.kind, seconds))
        else:
            blocks = sum(len(group.keys) for group in under_way.job.groups)
            reasons = {error.kind: blocks} if blocks else {}
            self._emit(SaveDone(job_id, dropped=blocks, reasons=reasons, seconds=seconds))

    def _end(self, job_id: int) -> _UnderWay | None:
        under_way = self._jobs.pop(job_id, None)
        if under_way is not None:
            under_way.timer.cancel()
            self._idle.set()
        return under_way

    # -- what the node says ----------------------------------------------------------------------------------------

    def _hear(self, message: wire.FromNode) -> None:
        match message:
            case wire.Fill():
                self._say(wire.Filled(message.ticket, self._copy(message)))
            case wire.Take():
                self._copy(message)
                self._say(wire.Taken(message.ticket))
            case wire.Saved(done=done):
                if self._end(done.job_id) is not None:
                    self._emit(done)
            case wire.Loaded(done=done):
                if self._end(done.job_id) is not None:
                    self._emit(done)
            case wire.Answered(answer=answer):
                if answer.lookup_id in self._lookups:
                    self._lookups[answer.lookup_id] = True
                    if answer.error:
                        del self._lookups[answer.lookup_id]
                    self._emit(answer)
            case wire.HoldLapsed(lapsed=lapsed):
                if lapsed.lookup_id in self._lookups:
                    del self._lookups[lapsed.lookup_id]
                    self._emit(lapsed)
            case wire.BlocksRemoved(removed=removed):
                self._emit(removed)
            case wire.ResetDone(number=number, error=error):
                future = self._resets.get(number)
                if future is not None and not future.done():
                    if error:
                        future.set_exception(Unavailable(error))
                    else:
                        future.set_result(None)
            case wire.State(connected=connected):
                self._state(connected)

    def _state(self, connected: bool) -> None:
        if not connected and self.connected:
            self._trouble = Unavailable(f"the node {self.node!r} has lost its connection to the pool")
        self.connected = connected

    def _copy(self, message: wire.Fill | wire.Take) -> bool:
        """Between the ring and the engine's memory, if the job is still under way."""
        under_way, ring = self._jobs.get(message.job_id), self._ring
        if under_way is None or ring is None:
            return False
        try:
            if not 0 <= message.group < len(under_way.job.groups):
                raise TransferFailed("the node speaks of a group that the job does not have")
            group = under_way.job.groups[message.group]
            if not all(0 <= position < len(group.keys) for position in message.positions):
                raise TransferFailed("the node speaks of blocks that the job does not have")
            places = places_of(group, message.positions)
            if isinstance(message, wire.Take):
                ring.read_into(places, message.offset)
            else:
                ring.write_from(places, message.offset)
        except PoolError as error:
            log.warning("%s: job %d failed: %s", self._name, message.job_id, error)
            self._say(wire.Drop(message.job_id))
            self._fail(message.job_id, error)
            return False
        return True

    # -- the attachment --------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        backoff = Backoff(self._runtime.random)
        while True:
            try:
                try:
                    await self._attach()
                finally:
                    self.searched.set()
                backoff.reset()
                await self._follow()
            except PoolError as error:
                if self._stream is not None or error.message != self._trouble.message:
                    log.warning("%s is not attached to a node: %s", self._name, error)
                self._lose(error)
            await asyncio.sleep(backoff.next_s())

    async def _attach(self) -> None:
        """To the first node that takes us. Raises why none did."""
        tried: list[str] = []
        for path in self._where.find():
            try:
                await self._attach_at(path)
                return
            except PoolError as error:
                tried.append(f"{path}: {error}")
        raise Unavailable("; ".join(tried) or "no node of this user runs on this host")

    async def _attach_at(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        packets = PacketSocket(sock, loop)
        ring = RingFile(self._ring_bytes)
        ours, theirs = socket.socketpair()
        stream: Stream | None = None
        try:
            try:
                await loop.sock_connect(sock, path)
            except OSError as error:
                raise Unavailable(f"nobody listens there ({error.strerror})") from error
            token = self._where.token.encode() if self._where.token else None
            identity = Identity(Peer(self._name, self._runtime.new_incarnation(), True), self._where.cluster, token)
            async with asyncio.timeout(HANDSHAKE_S):
                await introduce(packets, identity.handshake(self._runtime))
                offer = await self._offer(packets)
                packets.send(
                    wire.encode(wire.Attach(ring.size_bytes, self._where.replicas)), [ring.fd, theirs.fileno()]
                )
                theirs.close()
                stream = await open_stream(ours.detach(), path)
                frame = await stream.recv()
            state = wire.decode_from_node(frame) if frame is not None else None
            if not isinstance(state, wire.State):
                raise Unavailable("the node ended the attachment")
        except BaseException as error:
            ring.close()
            if stream is not None:
                stream.abort()
            if isinstance(error, TimeoutError):
                raise Unavailable(f"no answer within {HANDSHAKE_S:g} s") from None
            raise
        finally:
            ours.close()
            theirs.close()
            packets.close(Unavailable("it goes on on the stream"))
        self._ring, self._stream, self.node, self.connected = ring, stream, offer.node, state.connected
        if not state.connected:
            self._trouble = Unavailable(f"the node {offer.node!r} is not connected to the pool")
        log.info("%s is attached to the node %r", self._name, offer.node)
        if self._watched:
            self._say(wire.Watch(tuple(self._watched)))
            for scope in self._watched:  # no node told of what went meanwhile
                self._emit(Removed(scope, ()))

    async def _offer(self, packets: PacketSocket) -> wire.Offer:
        """Of which pool is this node? Raises `Unavailable` for another one than is wanted."""
        packet = await packets.receive()
        packet.close_descriptors()
        offer = wire.decode_offer(packet.data)
        if self._where.masters and not set(self._where.masters) & set(offer.masters):
            raise Unavailable(f"the node {offer.node!r} is of another pool, at {' or '.join(offer.masters)}")
        return offer

    async def _follow(self) -> None:
        """Carry out what the node says until it is gone or silent. Raises which."""
        stream = self._stream
        assert stream is not None, "attached"
        self._unanswered = 0
        pinging = asyncio.get_running_loop().create_task(self._ping(stream), name="pykvpool ping")
        try:
            while (frame := await stream.recv()) is not None:
                self._unanswered = 0
                self._hear(wire.decode_from_node(frame))
                await asyncio.sleep(0)  # what the engine asks comes between
        finally:
            pinging.cancel()
            await asyncio.wait([pinging])
        raise Unavailable("the node is gone or silent")

    async def _ping(self, stream: Stream) -> None:
        while self._unanswered < UNANSWERED:
            self._unanswered += 1
            self._say(wire.Ping())
            await asyncio.sleep(PING_S)
        stream.abort()

    def _lose(self, error: PoolError) -> None:
        """The node is given up: everything that it was to do has failed, and its ring is its own."""
        self._trouble, self.connected = error, False
        if self._stream is not None:
            self._stream.abort()
            self._stream = None
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        for job_id in list(self._jobs):
            self._fail(job_id, error)
        lookups, self._lookups = self._lookups, {}
        for lookup_id, answered in lookups.items():
            self._emit(Lapsed(lookup_id) if answered else _unanswered(lookup_id, error))
        for future in self._resets.values():
            if not future.done():
                future.set_exception(error)

    def _say(self, message: wire.FromEngine) -> bool:
        """False: the node is gone, or does not read; then it is given up."""
        if self._stream is None:
            return False
        try:
            self._stream.send(wire.encode(message))
        except PoolError as error:
            log.warning("%s: %s", self._name, error)
            self._stream.abort()
            return False
        return True


def _unanswered(lookup_id: int, error: PoolError) -> Answer:
    return Answer(lookup_id, error=error.message, reason=error.kind)


def _without_places(groups: Sequence[BlockGroup]) -> tuple[BlockGroup, ...]:
    """What the node may know: keys and sizes."""
    return tuple(
        dataclasses.replace(group, block_ids=(), runs=(Run(0, 0, group.block_bytes),)) for group in groups
    )  # fmt: skip
