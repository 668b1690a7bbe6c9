"""The session that clients and nodes hold with the master: calls, heartbeats, and coming back after a cut connection.

A `ControlSession` outlives its connections. When one breaks it reconnects, with backoff, under the same name and
incarnation, and sends unanswered requests again under their old numbers. It never opens another session by itself:
when the master says that the session is over (expired, superseded, unknown after a restart) everything that waits ends
with `SessionExpired`, `on_session_lost` is called once, and the owner decides. A node first destroys what it lent; then
`renew_session()` begins a new life. A superseded session cannot be renewed: another process has taken the name, and two
that take it from each other for ever help nobody.

It knows the protocol and the loop's time (so that it runs in virtual time too), never what a command means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from pykvpool.errors import Closed, DeadlineExceeded, PoolError, SessionExpired, Unavailable
from pykvpool.model.commands import Command, Goodbye
from pykvpool.model.ids import SessionId
from pykvpool.model.instructions import Instruction
from pykvpool.model.replies import Beat, ErrorInfo, Reply, Welcome
from pykvpool.protocol.codec import Unreadable, decode_from_master
from pykvpool.protocol.identity import Identity
from pykvpool.protocol.messages import NO_SESSION, Farewell, InstructionFrame, Parting, ReplyFrame
from pykvpool.runtime import Runtime
from pykvpool.transport.backoff import Backoff
from pykvpool.transport.calls import Call, CallTable
from pykvpool.transport.dial import Dialled, Dialler
from pykvpool.transport.line import Line
from pykvpool.transport.loss import SESSION_ENDS, SessionLoss, loss_of
from pykvpool.transport.registry import TransportRegistry, default_transports

log = logging.getLogger("pykvpool.transport.control")

#: A call whose caller names no deadline.
DEFAULT_CALL_TIMEOUT_S = 30.0
#: An address is given up on after this.
DEFAULT_CONNECT_TIMEOUT_S = 5.0
#: `close` waits this long for the master to take note.
GOODBYE_TIMEOUT_S = 2.0
#: Frames handled before other tasks get a turn.
FRAMES_PER_TURN = 64

OnInstruction = Callable[[Instruction], None]
#: Called with the reason, for people; `ControlSession.lost` has it for programs.
OnSessionLost = Callable[[str], None]
#: Called with a command and its reply when the caller had given up before the reply came.
OnOrphanReply = Callable[[Command, Reply], None]


class ControlSession:
    """Make one with `connect`. Callbacks run on the loop and must not block; what they raise is logged."""

    def __init__(
        self,
        dialler: Dialler,
        identity: Identity,
        runtime: Runtime,
        connect_timeout_s: float,
        on_instruction: OnInstruction | None,
        on_session_lost: OnSessionLost | None,
        on_orphan_reply: OnOrphanReply | None,
    ) -> None:
        self._dialler = dialler
        self._identity = identity
        self._runtime = runtime
        self._connect_timeout_s = connect_timeout_s
        self._on_instruction = on_instruction
        self._on_session_lost = on_session_lost
        self._on_orphan_reply = on_orphan_reply
        self._calls = CallTable()
        self._backoff = Backoff(runtime.random)
        self._welcome = Welcome(NO_SESSION, 0, 0, 0, False)
        #: The cluster that the master serves.
        self.cluster = identity.cluster
        #: The connection, while there is one.
        self._line: Line | None = None
        #: Why there is none at the moment.
        self._trouble = ""
        #: Set while the session is over and not renewed.
        self.lost: SessionLoss | None = None
        #: Reads the connection, and reconnects; one per session life.
        self._runner: asyncio.Task[None] | None = None
        self._renewing = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def connect(
        cls,
        addresses: Sequence[str],
        *,
        name: str,
        role: str,
        runtime: Runtime,
        token: str | None = None,
        cluster: str = "",
        connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
        on_instruction: OnInstruction | None = None,
        on_session_lost: OnSessionLost | None = None,
        on_orphan_reply: OnOrphanReply | None = None,
        transports: TransportRegistry | None = None,
    ) -> ControlSession:
        """Open a session with the first of `addresses` that takes us. `role` is "client", "reader" or "node".

        Raises `InvalidArgument` (an address or name that cannot be right), `Unavailable` within `connect_timeout_s`
        (every address tried, and why it failed), `Refused` (version, cluster or token).
        """
        dialler = Dialler(addresses, token, runtime, transports or default_transports())
        identity = Identity(name, role, runtime.new_incarnation(), cluster)
        identity.check()
        session = cls(dialler, identity, runtime, connect_timeout_s, on_instruction, on_session_lost, on_orphan_reply)
        session._open(await dialler.dial(identity, connect_timeout_s))
        return session

    # -- facts about it -------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> SessionId:
        return self._welcome.session

    @property
    def name(self) -> str:
        return self._identity.name

    @property
    def incarnation(self) -> int:
        """Of this life of the session; `renew_session` draws another."""
        return self._identity.incarnation

    @property
    def epoch(self) -> int:
        """Of the master: scopes interned in another epoch are void."""
        return self._welcome.epoch

    @property
    def lease_ms(self) -> int:
        """What the master grants where a reader names no lease."""
        return self._welcome.lease_ms

    @property
    def ttl_ms(self) -> int:
        """The session lives this long without a sign of life."""
        return self._welcome.ttl_ms

    @property
    def connected(self) -> bool:
        """There is a connection at this moment; calls work, or wait, in either case."""
        return self._line is not None

    # -- using it -------------------------------------------------------------------------------------------------

    async def call(self, command: Command, timeout_s: float = DEFAULT_CALL_TIMEOUT_S) -> Reply:
        """One command and its reply. Many at once are pipelined; over the window they wait their turn.

        Raises what the master answers, `DeadlineExceeded` (connected, no answer in time), `Unavailable` (no connection
        within that time), `SessionExpired`, `Closed`, `Overloaded` (too many calls wait), `LimitExceeded` (too large
        for a frame). Cancelling is safe: a late reply goes to `on_orphan_reply`. After a deadline or cancellation the
        command may have been carried out.
        """
        self._check_usable()
        loop = asyncio.get_running_loop()
        owner: asyncio.Future[Reply] = loop.create_future()
        calls = self._calls
        call = calls.add(command, owner)
        self._pump()
        try:
            async with asyncio.timeout(timeout_s):
                reply = await owner
        except TimeoutError:
            self._give_up(calls, call, owner)
            raise self._deadline_error(command, timeout_s) from None
        except asyncio.CancelledError:
            self._give_up(calls, call, owner)
            raise
        if isinstance(reply, ErrorInfo):
            raise reply.error()
        return reply

    async def renew_session(self) -> None:
        """After a loss: open a new session of the same name, with a new incarnation. Does nothing where none was lost.

        What the old session held (puts, leases, scopes, segments) is gone. Raises like `connect`; `SessionExpired`
        where the old one was superseded.
        """
        async with self._renewing:
            self._check_open()
            if self.lost is None:
                return
            if self.lost.final:
                raise SessionExpired(f"{self.lost.error(self.name)}: give each process a name of its own")
            identity = replace(self._identity, incarnation=self._runtime.new_incarnation(), resume=NO_SESSION, epoch=0)
            dialled = await self._dialler.dial(identity, self._connect_timeout_s)
            try:
                self._check_open()
            except Closed:
                dialled.stream.close()
                raise
            self._identity = identity
            self._open(dialled)

    async def close(self, *, goodbye: bool = True) -> None:
        """Say goodbye (bounded), end the connection; whatever still waits ends with `Closed`. Harmless twice.

        Without `goodbye` the master learns by silence: for who cannot vouch that nothing of theirs is under way.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(goodbye))
        await asyncio.shield(self._closing)

    # -- one connection after the other ---------------------------------------------------------------------------

    def _open(self, dialled: Dialled) -> None:
        """A session of ours begins on this connection."""
        self._calls = CallTable()
        self.lost = None
        self._backoff.reset()
        line = self._attach(dialled)
        self._runner = asyncio.get_running_loop().create_task(self._run(line))
        self._runner.add_done_callback(self._check_runner)

    def _attach(self, dialled: Dialled) -> Line:
        """The session goes on on this connection."""
        self._welcome, self.cluster = dialled.welcome, dialled.cluster
        self._trouble = ""
        self._line = Line(dialled.stream, self._calls, self.ttl_ms)
        return self._line

    async def _run(self, line: Line) -> None:
        """Serve this connection, then the next, until the session is lost or closed."""
        while True:
            trouble = await self._serve(line)
            self._detach(trouble)
            if self.lost is not None or self._closed:
                return
            log.info("session %r lost its connection to the master: %s", self.name, trouble)
            dialled = await self._reconnect()
            if dialled is None:
                return
            line = self._attach(dialled)

    def _check_runner(self, runner: asyncio.Task[None]) -> None:
        """A runner that died of a bug must not leave callers waiting."""
        error = None if runner.cancelled() else runner.exception()
        if error is not None:
            log.error("session %r: a bug in the pool", self.name, exc_info=error)
            self._lose(SessionLoss(Parting.NONE, f"a bug in the pool: {error!r}"))

    async def _serve(self, line: Line) -> str:
        """Handle what the master sends until the connection ends; returns why it did."""
        handled = 0
        try:
            while (frame := await line.stream.recv()) is not None:
                self._backoff.reset()
                line.heard()
                parting = self._handle(frame)
                if parting is not None:
                    return parting
                handled += 1
                if handled % FRAMES_PER_TURN == 0:
                    await asyncio.sleep(0)
        except PoolError as error:
            return error.message
        return "the master closed the connection"

    def _handle(self, frame: bytes) -> str | None:
        """One frame; a text if it was the last."""
        match decode_from_master(frame):
            case ReplyFrame(request_id=request_id, reply=reply):
                self._answer(self._calls.answer(request_id), reply)
            case Unreadable(request_id=request_id, error=error):
                log.warning("the master's reply to request %d cannot be read: %s", request_id, error)
                self._answer(self._calls.answer(request_id), ErrorInfo.of(error))
            case InstructionFrame(instruction=instruction):
                if self._on_instruction is not None:
                    self._call_back(self._on_instruction, instruction)
            case Farewell(message=message, parting=parting):
                if parting in SESSION_ENDS:
                    self._lose(SessionLoss(parting, message))
                return f"the master says farewell: {message}"
        return self.lost.message if self.lost is not None else None

    async def _reconnect(self) -> Dialled | None:
        """The session's next connection; None where the session is over. Says once why there is none, and when that
        changes: a wrong token lasts until a person mends it."""
        identity = replace(self._identity, resume=self.session_id, epoch=self.epoch)
        while True:
            await asyncio.sleep(self._backoff.next_s())
            try:
                dialled = await self._dialler.dial(identity, self._connect_timeout_s)
            except SessionExpired as error:
                self._lose(loss_of(error))
                return None
            except PoolError as error:
                level = logging.DEBUG if error.message == self._trouble else logging.WARNING
                log.log(level, "session %r cannot reconnect, and goes on trying: %s", self.name, error)
                self._trouble = error.message
                continue
            if dialled.welcome.session != self.session_id or not dialled.welcome.resumed:
                dialled.stream.close()
                self._lose(SessionLoss(Parting.RESTARTED, "the master gave another session than the one it had"))
                return None
            log.info("session %r is connected again, at %s", self.name, dialled.address)
            return dialled

    def _detach(self, trouble: str) -> None:
        """The connection, if there is one, is over."""
        line, self._line, self._trouble = self._line, None, trouble
        if line is not None:
            line.stop()
            line.stream.close()

    def _lose(self, loss: SessionLoss) -> None:
        """The master says that the session is over."""
        if self.lost is not None or self._closed:
            return
        self.lost = loss
        over = loss.error(self.name)
        log.warning("%s", over)
        self._calls.fail_all(over)
        if self._on_session_lost is not None:
            self._call_back(self._on_session_lost, loss.message)

    # -- calls ----------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        if self._line is not None:
            self._line.pump()

    def _answer(self, call: Call | None, reply: Reply) -> None:
        if call is None:
            return  # a repeat was answered twice
        if call.owner is not None and not call.owner.done():
            call.owner.set_result(reply)
        else:
            self._orphan(call.command, reply)
        if isinstance(reply, ErrorInfo) and reply.code == SessionExpired.code:
            self._lose(SessionLoss(Parting.EXPIRED, reply.message))
        self._pump()

    def _give_up(self, calls: CallTable, call: Call, owner: asyncio.Future[Reply]) -> None:
        """The caller no longer waits. Its reply may be here already: then it is an orphan now."""
        if owner.cancelled():
            calls.give_up(call)
        elif owner.exception() is None:
            self._orphan(call.command, owner.result())

    def _orphan(self, command: Command, reply: Reply) -> None:
        if self._on_orphan_reply is not None and not isinstance(reply, ErrorInfo | Beat):
            self._call_back(self._on_orphan_reply, command, reply)

    def _deadline_error(self, command: Command, timeout_s: float) -> PoolError:
        verb = type(command).__name__
        if self._line is None:
            return Unavailable(f"{verb}: no connection to the master within {timeout_s:g} s: {self._trouble}")
        return DeadlineExceeded(f"{verb}: the master did not answer within {timeout_s:g} s")

    def _check_usable(self) -> None:
        self._check_open()
        if self.lost is not None:
            raise self.lost.error(self.name)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise Closed(f"session {self.name!r} is closed")

    # -- the end --------------------------------------------------------------------------------------------------

    async def _close(self, goodbye: bool) -> None:
        line = self._line
        if goodbye and line is not None and self.lost is None:
            await self._say_goodbye(line)
        self._closed = True
        self._calls.fail_all(Closed(f"session {self.name!r} was closed"))
        self._detach("closed")
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait([self._runner])
        if line is not None:
            await line.stream.wait_closed()

    async def _say_goodbye(self, line: Line) -> None:
        owner: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        try:
            line.send_at_once(Goodbye(), owner)
            async with asyncio.timeout(GOODBYE_TIMEOUT_S):
                await owner
        except TimeoutError:
            log.info("session %r ends without the master's word: no answer in time", self.name)
        except PoolError as error:
            log.info("session %r ends without the master's word: %s", self.name, error)

    def _call_back(self, callback: Callable[..., None], *args: object) -> None:
        try:
            callback(*args)
        except Exception:
            log.exception("a callback of session %r failed", self.name)
