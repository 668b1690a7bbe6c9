"""The engine's end of an attachment, on the loop of a small thread: says jobs to the node, hears what becomes of them.

It alone touches the engine's memory (`under_way`), and only for jobs that are under way, between two turns of its loop.
So a job that is ended here (deadline, fence, lost node) is over at once: whatever the node still does with it ends in
the ring.

    searching ──► attached ──► (node gone, or silent) ──► its jobs fail, the ring goes ──► searching
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading

from pykvpool.errors import Closed, PoolError, Unavailable
from pykvpool.host.access import explained
from pykvpool.host.agent import wire
from pykvpool.host.agent.asked import OpenLookups, OpenResets
from pykvpool.host.agent.attaching import Where, attach
from pykvpool.host.agent.outbox import Claim, Outbox
from pykvpool.host.agent.ring import RingFile
from pykvpool.host.agent.under_way import JobsUnderWay, without_places
from pykvpool.host.port import LoadJob, Lookup, Removed, SaveJob
from pykvpool.host.work import Emit
from pykvpool.model.keys import Scope
from pykvpool.runtime import Runtime
from pykvpool.transport.backoff import Backoff
from pykvpool.transport.base import Stream

log = logging.getLogger("pykvpool.host.agent")

#: Blocks of the largest size that a ring holds at least.
RING_BLOCKS = 4
#: A node is asked for a sign of life this often (s), and given up when it has let so many in a row go unanswered: it is
#: on this host, a healthy one answers within milliseconds. They are counted, not timed: when the whole host stands
#: still for a while, the engine's process with it, that says nothing about the node.
PING_S = 1.0
UNANSWERED = 6


class Rank:
    """All methods are for the loop's thread. Events go to `emit`."""

    def __init__(self, where: Where, runtime: Runtime, emit: Emit) -> None:
        self._where = where
        self._name = where.name
        self._runtime = runtime
        self._emit = emit
        self._jobs = JobsUnderWay(where.name, lambda job_id: self._say(wire.Drop(job_id)), emit)
        self._lookups = OpenLookups(emit)
        self._resets = OpenResets()
        #: Scopes of which every node is to tell.
        self._watched: dict[Scope, None] = {}
        self._ring_bytes = where.ring_bytes
        self._ring: RingFile | None = None
        self._stream: Stream | None = None
        self._outbox: Outbox | None = None
        self._trouble: PoolError = Unavailable("not attached to a node yet")
        self._keeper: asyncio.Task[None] | None = None
        #: Signs of life asked for since the node said anything.
        self._unanswered = 0
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
        self._ask(wire.Save(without_places(job)), self._jobs.begin(job), self._takes(job))

    def load(self, job: LoadJob) -> None:
        self._ask(wire.Load(without_places(job)), self._jobs.begin(job), self._takes(job))

    def lookup(self, lookup: Lookup) -> None:
        self._ask(wire.Ask(lookup), self._lookups.begin(lookup.lookup_id), self.connected)

    def release(self, lookup_id: int) -> None:
        if self._lookups.released(lookup_id):
            self._say(wire.Release(lookup_id))

    def watch(self, scopes: tuple[Scope, ...]) -> None:
        self._watched.update(dict.fromkeys(scopes))
        self._say(wire.Watch(scopes))

    def fence(self) -> None:
        """Every save that was said before is ended by the node, and reported as any."""
        self._say(wire.Fence())

    async def reset(self, scopes: tuple[Scope, ...], timeout_s: float) -> None:
        """Raises what kept it from being sure."""

        def say(number: int) -> None:
            if not self._say(wire.Reset(number, scopes, int(timeout_s * 1_000))):
                raise self._trouble

        await self._resets.run(say, timeout_s)

    async def close(self, drain_s: float) -> None:
        """Let saves finish for at most `drain_s`, then end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self._jobs.saves_end()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._lose(Closed("the port was closed"))

    def _takes(self, job: SaveJob | LoadJob) -> bool:
        """There is a node, and the ring holds a few of the job's blocks; else a larger one is made, with the next
        attachment."""
        if not self.connected:
            return False
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

    # -- what the node says ----------------------------------------------------------------------------------------

    def _hear(self, message: wire.FromNode) -> None:
        match message:
            case wire.Fill():
                self._say(wire.Filled(message.ticket, self._jobs.copy(message, self._ring)))
            case wire.Take():
                self._jobs.copy(message, self._ring)
                self._say(wire.Taken(message.ticket))
            case wire.Saved(done=save):
                self._jobs.done(save)
            case wire.Loaded(done=load):
                self._jobs.done(load)
            case wire.Answered(answer=answer):
                self._lookups.answered(answer)
            case wire.HoldLapsed(lapsed=lapsed):
                self._lookups.lapsed(lapsed)
            case wire.BlocksRemoved(removed=removed):
                self._emit(removed)
            case wire.ResetDone():
                self._resets.done(message)
            case wire.State(connected=connected):
                self._state(connected)

    def _state(self, connected: bool) -> None:
        if not connected and self.connected:
            self._trouble = Unavailable(f"the node {self.node!r} has lost its connection to the pool")
        self.connected = connected

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
            except Exception as failure:  # noqa: BLE001 - whatever it is, the next search may go well
                error = explained(failure)
                if self._stream is not None or error.message != self._trouble.message:
                    log.warning("%s is not attached to a node: %s", self._name, error)
                self._lose(error)
            await asyncio.sleep(backoff.next_s())

    async def _attach(self) -> None:
        """To the first node that takes us. Raises why none did."""
        new = await attach(self._where, self._ring_bytes, self._runtime)
        self._use(new.stream)
        self._ring, self.node, self.connected = new.ring, new.node, new.connected
        if not new.connected:
            self._trouble = Unavailable(f"the node {new.node!r} is not connected to the pool")
        log.info("%s is attached to the node %r", self._name, new.node)
        if self._watched:
            self._say(wire.Watch(tuple(self._watched)))
            for scope in self._watched:  # no node told of what went meanwhile
                self._emit(Removed(scope, ()))

    def _use(self, stream: Stream) -> None:
        self._stream, self._outbox = stream, Outbox(stream)

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
        if self._outbox is not None:
            self._outbox.close()
            self._outbox = None
        if self._stream is not None:
            self._stream.abort()
            self._stream = None
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        self._jobs.fail_all(error)
        self._lookups.lose(error)
        self._resets.lose(error)

    def _ask(self, message: wire.FromEngine, claim: Claim, possible: bool) -> None:
        if not possible or not self._say(message, claim):
            claim.fail(self._trouble)

    def _say(self, message: wire.FromEngine, claim: Claim | None = None) -> bool:
        """False: the node is gone."""
        if self._outbox is None:
            return False
        if isinstance(message, wire.Filled | wire.Taken | wire.Ping):
            self._outbox.put_ahead(message)
        else:
            self._outbox.put(message, claim)
        return True
