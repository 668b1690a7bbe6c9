"""The node's shell: lend memory, prove that a fenced writer is gone, go at once when told to.

    start ──► connect ──► mount ──► serve ──► unmount ──► goodbye
                ▲                     │
                └── fresh memory ◄────┘ session lost, or the master no longer knows the mount

The node decides nothing about blocks: the master places them, clients move them (one-sided: this process only serves
its fabrics). What it must never do is let bytes land that the master believes cannot: `Fence` is answered only when
every fabric says so.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from pykvpool.errors import InvalidArgument, PoolError, SessionExpired
from pykvpool.fabric.base import FabricServer
from pykvpool.memory.segment import MemorySegment
from pykvpool.model.commands import Fenced, Hashed, Mount, Unmount
from pykvpool.model.ids import SegmentId
from pykvpool.model.instructions import DropSegment, Fence, HashExtents, Instruction, SessionOver
from pykvpool.model.replies import Mounted as MountedReply
from pykvpool.node.mount import Lent, Mounted
from pykvpool.runtime import Runtime
from pykvpool.transport.control import ControlSession
from pykvpool.transport.registry import TransportRegistry

log = logging.getLogger("pykvpool.node")

#: One answer of the master to a node; generous, since the session reconnects underneath.
CALL_TIMEOUT_S = 30.0
#: SIGTERM must be quick: an unmount that does not get through is left to the master's time-outs.
LEAVE_TIMEOUT_S = 3.0
#: Pause before a lost session is opened anew, doubled up to the last one.
RENEW_PAUSES_S = (0.1, 0.5, 2.0, 5.0)

#: Makes the memory of one mount, given its size in bytes.
MakeMemory = Callable[[int, Runtime], Lent]


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a node needs to know."""

    name: str
    master: tuple[str, ...]
    segment_size_bytes: int
    token: str | None = None
    cluster: str = ""
    connect_timeout_s: float = 5.0


class Node:
    """One process's part of the pool: a segment, its fabrics, a session with the master."""

    def __init__(
        self,
        settings: NodeSettings,
        servers: Sequence[FabricServer],
        runtime: Runtime,
        *,
        transports: TransportRegistry | None = None,
        make_memory: MakeMemory = MemorySegment,
    ) -> None:
        """`runtime`, `transports` and `make_memory` are the outside world; a simulator brings its own."""
        if settings.segment_size_bytes <= 0:
            raise InvalidArgument(f"segment_size is {settings.segment_size_bytes}: a node lends at least one page")
        self._settings = settings
        self._servers = servers
        self._runtime = runtime
        self._transports = transports
        self._make_memory = make_memory
        self._session: ControlSession | None = None
        self._mount: Mounted | None = None
        #: Work under way for instructions, by what it is about: a repeated instruction starts nothing new.
        self._duties: dict[object, asyncio.Task[None]] = {}
        #: Set when a remount is due; the mounting task waits for it.
        self._remount = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False
        #: Why the node ended by itself (superseded by another node of its name), for whoever waits.
        self._over: asyncio.Future[str] | None = None

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def session(self) -> ControlSession | None:
        return self._session

    @property
    def mount(self) -> Mounted | None:
        """The present mount; None before `start`, between two mounts, and after `stop`."""
        return self._mount

    async def start(self) -> None:
        """Listen, connect, lend. Raises `ConfigError`, `Unavailable`, `Refused`; nothing is left behind then."""
        settings = self._settings
        self._over = asyncio.get_running_loop().create_future()
        started: list[FabricServer] = []
        try:
            for server in self._servers:
                await server.start()
                started.append(server)
            self._session = await ControlSession.connect(
                list(settings.master),
                name=settings.name,
                role="node",
                runtime=self._runtime,
                token=settings.token,
                cluster=settings.cluster,
                connect_timeout_s=settings.connect_timeout_s,
                on_instruction=self._on_instruction,
                on_session_lost=self._on_session_lost,
                transports=self._transports,
            )
            await self._mount_fresh()
        except BaseException:
            if self._session is not None:
                await self._session.close()
            for server in started:
                await server.close()
            if self._mount is not None:
                self._mount.memory.close()
            raise
        self._keeper = asyncio.get_running_loop().create_task(self._keep_mounted(), name="pykvpool node keeper")

    async def stop(self) -> None:
        """Take the segment back and leave: the master knows at once. Harmless twice."""
        if self._stopping:
            return
        self._stopping = True
        for task in [*self._duties.values(), *([self._keeper] if self._keeper else [])]:
            task.cancel()
            await asyncio.wait([task])
        mount, self._mount = self._mount, None
        if (session := self._session) is not None:
            if mount is not None and (segment := mount.segment) is not None:
                await self._quietly(lambda: session.call(Unmount(segment), LEAVE_TIMEOUT_S), "unmount")
            await session.close()
        if mount is not None:
            await mount.destroy()
        for server in self._servers:
            await server.close()

    async def wait_over(self) -> str:
        """Returns only when the node cannot go on by itself; says why."""
        assert self._over is not None, "the node was started"
        return await asyncio.shield(self._over)

    # -- mounting --------------------------------------------------------------------------------------------------

    async def _mount_fresh(self) -> None:
        """Lend new memory under a new generation."""
        assert self._session is not None, "connected before"
        for server in self._servers:
            server.cluster = self._session.cluster  # told none, a node serves the one it has joined
        memory = self._make_memory(self._settings.segment_size_bytes, self._runtime)
        try:
            mount = Mounted(memory, self._servers)
        except BaseException:
            memory.close()
            raise
        self._mount = mount
        command = Mount(memory.generation, memory.size_bytes, mount.endpoints)
        reply = await self._session.call(command, CALL_TIMEOUT_S)
        if not isinstance(reply, MountedReply):
            raise PoolError(f"mount was answered with {type(reply).__name__}")
        mount.segment = reply.segment

    async def _keep_mounted(self) -> None:
        """Whenever the mount is lost: destroy it, open a session where that was lost too, mount anew."""
        while True:
            await self._remount.wait()
            await self._drop_mount()
            for attempt in itertools.count():
                self._remount.clear()
                try:
                    assert self._session is not None, "started"
                    await self._session.renew_session()
                    await self._mount_fresh()
                except SessionExpired as error:
                    if not self._remount.is_set():
                        self._end(str(error))
                        return
                except PoolError as error:
                    log.warning("node %s is not mounted: %s; trying again", self.name, error)
                else:
                    assert self._mount is not None, "just mounted"
                    log.info("node %s is mounted again as segment %s", self.name, self._mount.segment)
                    break
                await self._drop_mount()
                await asyncio.sleep(RENEW_PAUSES_S[min(attempt, len(RENEW_PAUSES_S) - 1)])

    async def _drop_mount(self) -> None:
        mount, self._mount = self._mount, None
        if mount is not None:
            await mount.destroy()

    def _on_session_lost(self, reason: str) -> None:
        ended = self._session is not None and self._session.lost is not None and self._session.lost.final
        what = "the node ends" if ended else "lent anew"
        log.warning("node %s lost its session (%s): its memory is destroyed, and %s", self.name, reason, what)
        self._remount.set()

    def _end(self, reason: str) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(reason)

    # -- instructions ----------------------------------------------------------------------------------------------

    def _on_instruction(self, instruction: Instruction) -> None:
        match instruction:
            case Fence():
                self._begin(("fence", instruction.number), self._fence, instruction)
            case HashExtents():
                self._begin(("hash", instruction.puts), self._hash, instruction)
            case DropSegment():
                if self._mount is not None and self._mount.segment == instruction.segment:
                    log.warning("the master no longer knows segment %s: lending fresh memory", instruction.segment)
                    self._remount.set()
            case SessionOver():
                log.warning("node %s: the master ended this session: %s", self.name, instruction.reason)

    def _begin(
        self, about: object, duty: Callable[..., Coroutine[object, object, None]], instruction: Instruction
    ) -> None:
        if about in self._duties or self._stopping:
            return
        work = self._quietly(lambda: duty(instruction), type(instruction).__name__)
        task = asyncio.get_running_loop().create_task(work, name=f"pykvpool node {about}")
        self._duties[about] = task
        task.add_done_callback(lambda done: self._duties.pop(about, None))

    async def _quietly(self, work: Callable[[], Coroutine[object, object, object]], what: str) -> None:
        """A duty that fails is repeated by the master, who sends its instruction again."""
        try:
            await work()
        except PoolError as error:
            log.info("node %s: %s did not get through: %s", self.name, what, error)

    async def _fence(self, instruction: Fence) -> None:
        mount = self._mount_of(instruction.segment)
        if mount is None:
            return  # the mount has ended, and with it every quarantine there: the master knows or will
        await mount.fence(instruction.name, instruction.incarnation, instruction.ban)
        await self._say(Fenced(instruction.session, instruction.segment, instruction.number))

    async def _hash(self, instruction: HashExtents) -> None:
        mount = self._mount_of(instruction.segment)
        if mount is None:
            return
        sums = await mount.hash(instruction.extents, self._runtime)
        await self._say(Hashed(instruction.segment, instruction.puts, tuple(sums)))

    def _mount_of(self, segment: SegmentId) -> Mounted | None:
        return self._mount if self._mount is not None and self._mount.segment == segment else None

    async def _say(self, command: Fenced | Hashed) -> None:
        assert self._session is not None, "connected before any instruction"
        await self._session.call(command, CALL_TIMEOUT_S)
