"""A small scripted core: sessions for real, commands by script; it tests the shell without the rules of the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from pykvpool.core.effects import Effects
from pykvpool.errors import PoolError, SessionExpired
from pykvpool.model.commands import Exists, Goodbye, Heartbeat
from pykvpool.model.events import Disconnected, Event, Hello, Request, Tick
from pykvpool.model.facts import SessionEnded, SessionOpened
from pykvpool.model.ids import RequestId, SessionId
from pykvpool.model.instructions import SessionOver
from pykvpool.model.replies import Beat, Counted, Done, ErrorInfo, Flags, Reply, Welcome


@dataclass
class FakeSession:
    hello: Hello
    #: Replies kept for repeats.
    kept: dict[int, Reply] = field(default_factory=dict)


class FakeCore:
    """Answers `Exists` with one flag per hash, `Heartbeat` and `Goodbye` as expected, anything else with `Counted`;
    commands that `hold` matches are answered by `release()`. `carried_out` lists requests that were not repeats."""

    def __init__(self, epoch: int = 77, ttl_ms: int = 10_000) -> None:
        self.epoch = epoch
        self.ttl_ms = ttl_ms
        self.sessions: dict[SessionId, FakeSession] = {}
        #: Why past incarnations ended.
        self.ended: dict[tuple[str, int], str] = {}
        self.last_session = 0
        self.carried_out: list[Request] = []
        self.events: list[Event] = []
        self.held: list[Request] = []
        self.hold: Callable[[Request], bool] = lambda request: False
        #: The error with which a request is answered, if any.
        self.refuse: Callable[[Request], PoolError | None] = lambda request: None
        #: Called before each event is handled; may raise.
        self.before: Callable[[Event], None] = lambda event: None
        self.deadline: int | None = None
        self.on_tick: Callable[[int], Effects] = lambda now: Effects()
        self._seen: list[tuple[Callable[[Event], bool], asyncio.Future[Event]]] = []

    def next_deadline(self) -> int | None:
        return self.deadline

    def step(self, event: Event, now: int) -> Effects:
        self.before(event)
        self.events.append(event)
        for matches, future in self._seen:
            if not future.done() and matches(event):
                future.set_result(event)
        match event:
            case Hello():
                return self._hello(event)
            case Request():
                return self._request(event)
            case Tick():
                return self.on_tick(now)
            case Disconnected():
                return Effects()

    async def seen(self, matches: Callable[[Event], bool]) -> Event:
        """Waits for a matching event from now on."""
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._seen.append((matches, future))
        return await future

    def answer_held(self) -> Effects:
        """The effects that answer every held request."""
        effects = Effects()
        for request in self.held:
            self._answer(effects, request)
        self.held.clear()
        return effects

    def end_session(self, session: SessionId, reason: str) -> Effects:
        hello = self.sessions.pop(session).hello
        self.ended[hello.name, hello.incarnation] = reason
        return Effects(
            facts=[SessionEnded(session, reason)], instructions=[(session, SessionOver(f"the session {reason}"))]
        )

    def _hello(self, hello: Hello) -> Effects:
        effects = Effects()
        reason = self.ended.get((hello.name, hello.incarnation))
        if hello.resume and (reason is not None or hello.resume not in self.sessions):
            gone = SessionExpired(f"the session is over: {reason}", reason=reason)
            effects.replies.append((SessionId(0), RequestId(hello.connection), ErrorInfo.of(gone)))
            return effects
        for session, known in list(self.sessions.items()):
            if known.hello.name != hello.name:
                continue
            if known.hello.incarnation == hello.incarnation:
                effects.replies.append((SessionId(0), RequestId(hello.connection), self._welcome(session, True)))
                return effects
            ended = self.end_session(session, "superseded")
            effects.facts += ended.facts
            effects.instructions += ended.instructions
        self.last_session += 1
        session = SessionId(self.last_session)
        self.sessions[session] = FakeSession(hello)
        effects.facts.append(SessionOpened(session, hello.name, hello.role, hello.incarnation))
        effects.replies.append((SessionId(0), RequestId(hello.connection), self._welcome(session, False)))
        return effects

    def _welcome(self, session: SessionId, resumed: bool) -> Welcome:
        return Welcome(session, self.ttl_ms, 10_000, self.epoch, resumed)

    def _request(self, request: Request) -> Effects:
        effects = Effects()
        session = self.sessions.get(request.session)
        if session is None:
            gone = ErrorInfo.of(SessionExpired("no such session"))
            effects.replies.append((request.session, request.request_id, gone))
            return effects
        for number in [number for number in session.kept if number <= request.acknowledged]:
            del session.kept[number]
        for number in request.received:
            session.kept.pop(number, None)
        kept = session.kept.get(request.request_id)
        if kept is not None:
            effects.replies.append((request.session, request.request_id, kept))
        elif any(held.request_id == request.request_id for held in self.held):
            pass  # its answer will come
        else:
            self.carried_out.append(request)
            if self.hold(request):
                self.held.append(request)
            else:
                self._answer(effects, request)
        return effects

    def _answer(self, effects: Effects, request: Request) -> None:
        reply: Reply
        error = self.refuse(request)
        match request.command:
            case _ if error is not None:
                reply = ErrorInfo.of(error)
            case Exists(hashes=hashes):
                reply = Flags(b"\x01" * len(hashes))
            case Heartbeat():
                reply = Beat(self.ttl_ms)
            case Goodbye():
                reply = Done()
                del self.sessions[request.session]
                effects.facts.append(SessionEnded(request.session, "goodbye"))
                effects.replies.append((request.session, request.request_id, reply))
                return
            case _:
                reply = Counted(len(self.carried_out))
        self.sessions[request.session].kept[request.request_id] = reply
        effects.replies.append((request.session, request.request_id, reply))
