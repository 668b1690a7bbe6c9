"""The master as a server: listens, admits, routes requests into the core and replies and instructions back out.

A thin shell around a `Decider`. It keeps no state of the pool; kill it and a core that replays the same facts goes on.
What it guards are its own resources: how many strangers may knock at once, how long they may take, how much may wait
for a reader that does not read (all bounded; over a bound the one connection suffers).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence

from pykvpool.core.effects import Effects
from pykvpool.errors import (
    Closed,
    InternalError,
    InvalidArgument,
    Overloaded,
    PoolError,
    SessionExpired,
    Unavailable,
    invariant,
)
from pykvpool.master.connection import Connection
from pykvpool.master.decider import Decider
from pykvpool.master.roster import PARTINGS, Roster
from pykvpool.master.seeds import SeedWatch
from pykvpool.master.stepper import FactSubscriber, Stepper
from pykvpool.model.events import Disconnected, Hello, Request
from pykvpool.model.ids import RequestId
from pykvpool.model.instructions import SessionOver
from pykvpool.model.replies import ErrorInfo, Reply, Welcome
from pykvpool.protocol.handshake import MasterHandshake
from pykvpool.protocol.identity import check_name, token_key
from pykvpool.protocol.messages import NO_SESSION, NONCE_BYTES, HelloFrame, Parting, RequestFrame
from pykvpool.runtime import Runtime
from pykvpool.transport.base import Listener, Stream
from pykvpool.transport.registry import TransportRegistry, default_transports

log = logging.getLogger("pykvpool.master")

#: Connections in their handshake. Honest ones take milliseconds; when there are more, the oldest has to go.
MAX_STRANGERS = 1_024
#: All connections; each costs a file descriptor and a few KiB.
MAX_CONNECTIONS = 16_384


class MasterServer:
    """`await start()`, then `addresses`; `await close()` ends it. `core` belongs to it from then on."""

    def __init__(
        self,
        core: Decider,
        listen: Sequence[str],
        runtime: Runtime,
        token: str | None = None,
        cluster: str = "",
        *,
        transports: TransportRegistry | None = None,
    ) -> None:
        """Raises `InvalidArgument` for an address, token or cluster name that cannot be right."""
        if isinstance(listen, str) or not listen:
            raise InvalidArgument("listen is a list of at least one address, such as ['tcp://0.0.0.0:7000']")
        self._transports = transports or default_transports()
        for address in listen:
            self._transports.check(address)
        token_key(token)
        check_name("cluster", cluster)
        self._listen = tuple(listen)
        self._runtime = runtime
        self._token = token
        self._cluster = cluster
        self._epoch = core.epoch
        self._roster = Roster()
        self._stepper = Stepper(core, runtime.clock, self._deliver)
        self._stepper.subscribe(self._roster.note)
        self._stepper.subscribe(SeedWatch().note)
        self._listeners: list[Listener] = []
        self._numbers = itertools.count(1)
        #: Every connection and its task, by number.
        self._connections: dict[int, Connection] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        #: Numbers of those in their handshake, oldest first.
        self._strangers: dict[int, None] = {}
        self._closed = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens, with real ports where 0 was asked for."""
        return tuple(listener.address for listener in self._listeners)

    def subscribe(self, subscriber: FactSubscriber) -> Callable[[], None]:
        """Get the facts of every step before its replies leave; returns a function that ends it."""
        return self._stepper.subscribe(subscriber)

    async def start(self) -> None:
        """Listen everywhere, or nowhere. Raises `ConfigError`."""
        invariant(not self._listeners and not self._closed, "a master server starts once")
        try:
            for address in self._listen:
                self._listeners.append(await self._transports.listen(address, self._accept))
        except BaseException:
            await self._stop_listening()
            raise
        self._stepper.start()

    async def close(self) -> None:
        """Say farewell to everybody and end. Sessions live on in the core. Harmless twice."""
        self._closed = True
        self._stepper.stop()
        await self._stop_listening()
        for connection in list(self._connections.values()):
            connection.part(Unavailable("the master is shutting down"), Parting.CLOSING)
        for task in list(self._tasks.values()):
            await asyncio.wait([task])

    async def _stop_listening(self) -> None:
        for listener in self._listeners:
            await listener.close()

    # -- connections (`House`) ------------------------------------------------------------------------------------

    def _accept(self, stream: Stream) -> None:
        number = next(self._numbers)
        nonce = self._runtime.random.randbytes(NONCE_BYTES)
        connection = Connection(number, stream, self, MasterHandshake(self._cluster, nonce, self._token))
        self._connections[number] = connection
        self._strangers[number] = None
        task = asyncio.get_running_loop().create_task(connection.run())
        self._tasks[number] = task
        task.add_done_callback(lambda task: self._finished(number, task))
        if self._closed:
            connection.part(Unavailable("the master is shutting down"), Parting.CLOSING)
        elif len(self._connections) > MAX_CONNECTIONS:
            connection.part(Overloaded(f"the master has {MAX_CONNECTIONS:,} connections already"))
        elif len(self._strangers) > MAX_STRANGERS:
            oldest = self._connections[next(iter(self._strangers))]
            del self._strangers[oldest.number]
            oldest.part(Overloaded("too many connections are in their handshake: try again"))

    def admit(self, connection: Connection, hello: HelloFrame) -> None:
        event = Hello(connection.number, hello.name, hello.role, hello.incarnation, hello.resume)
        if not self._stepper.submit(event):
            connection.refuse(InternalError("the master failed on this hello; its log says more"))

    def request(self, connection: Connection, frame: RequestFrame) -> None:
        event = Request(connection.session, frame.request_id, frame.acknowledged, frame.command, frame.received)
        if not self._stepper.submit(event):
            failure = InternalError("the master failed on this request; its log says more")
            connection.reply(frame.request_id, ErrorInfo.of(failure))

    def ended(self, connection: Connection) -> None:
        self._strangers.pop(connection.number, None)
        self._connections.pop(connection.number, None)
        if self._roster.unbind(connection):
            self._stepper.submit(Disconnected(connection.session))

    def _finished(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a connection failed: a bug in the pool", exc_info=error)

    # -- what the core decided ------------------------------------------------------------------------------------

    def _deliver(self, effects: Effects) -> None:
        for session, request_id, reply in effects.replies:
            if session == NO_SESSION:
                self._answer_hello(request_id, reply)
                continue
            connection = self._roster.connection(session)
            if connection is not None:  # else the core keeps the reply, and the peer will ask again
                connection.reply(request_id, reply)
        for session, instruction in effects.instructions:
            connection = self._roster.connection(session)
            if connection is None:
                continue
            if isinstance(instruction, SessionOver):
                connection.part(SessionExpired(instruction.reason), self._roster.ending(session))
            else:
                connection.instruct(instruction)

    def _answer_hello(self, number: RequestId, reply: Reply) -> None:
        connection = self._connections.get(number)
        if connection is None or connection.parted:
            return  # it hung up meanwhile, or had to go
        self._strangers.pop(number, None)
        match reply:
            case Welcome(session=session):
                before = self._roster.bind(session, connection)
                connection.welcome(reply)
                if before is not None:
                    before.part(Closed("a newer connection of the same session took over"), Parting.REPLACED)
            case ErrorInfo():
                self._refuse(connection, reply.error())
            case _:
                connection.refuse(InternalError(f"the core answers a hello with {type(reply).__name__}"))

    def _refuse(self, connection: Connection, error: PoolError) -> None:
        """The core opens no session. A peer that wanted its old one back is told what became of it."""
        parting = Parting.NONE
        if isinstance(error, SessionExpired):
            parting = PARTINGS.get(str(error.fields.get("reason")), Parting.EXPIRED)
            if connection.resumes_epoch not in (0, self._epoch):
                parting = Parting.RESTARTED
                error = SessionExpired("the master has restarted and does not know the session any more")
        connection.refuse(error, parting)
