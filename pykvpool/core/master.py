"""The master of the pool as a deterministic state machine.

`step(event, now)` is all there is: an event and the time go in, replies, facts and instructions come out. The same
events at the same times give the same effects, whoever drives: the asyncio shell, the simulator, a test. Long work goes
on in slices, one per step; `next_deadline()` says when the next step is wanted (the `now` of the last one: at once).

Who decides what: `handlers` map commands to decisions; `waiting` and `placement` give room; `leases`, `fences`,
`liveness` and `loss` end things; `state` holds what facts build, and its `evolve` alone changes it.
"""

from __future__ import annotations

from collections.abc import Generator

from pykvpool.core.config import CoreConfig
from pykvpool.core.context import Context
from pykvpool.core.durable import durable_state
from pykvpool.core.effects import Effects
from pykvpool.core.fences import Fences
from pykvpool.core.handlers import HANDLERS
from pykvpool.core.hash_requests import HashRequests
from pykvpool.core.jobs import Job
from pykvpool.core.leases import LEASE_UNITS
from pykvpool.core.liveness import disconnected, expire_sessions, hello, spare_sessions
from pykvpool.core.placement import Placement
from pykvpool.core.refusal import refusal
from pykvpool.core.requests import Seen
from pykvpool.core.sessions import Session
from pykvpool.core.tickets import GRANT_UNITS
from pykvpool.core.validate import validate
from pykvpool.core.waiting import Waiting
from pykvpool.errors import InvalidArgument, Overloaded, PoolError, SessionExpired
from pykvpool.model.events import Disconnected, Event, Hello, Request, Tick
from pykvpool.model.facts import Fact
from pykvpool.model.ids import LeaseId, PutId
from pykvpool.model.replies import ErrorInfo, Reply

#: A step that comes this much later than it was wanted: the master was away, not its peers.
AWAY_MS = 500


class MasterCore:
    """Decides for one pool. `epoch` names this life of the master; sessions and interned scopes of another are void."""

    def __init__(self, config: CoreConfig, epoch: int) -> None:
        context = self._context = Context(config, epoch)
        context.placement = Placement(context)
        context.waiting = Waiting(context)
        context.fences = Fences(context)
        context.hash_requests = HashRequests(context)
        #: Something was due in the last step that one slice did not finish.
        self._more_due = False
        #: A job had its slice in this step.
        self._advanced = False

    @property
    def config(self) -> CoreConfig:
        return self._context.config

    @property
    def epoch(self) -> int:
        return self._context.epoch

    @property
    def counters(self) -> dict[str, int]:
        """Monotonic totals by metric name (see `counters.MEANINGS`)."""
        return self._context.counters

    def step(self, event: Event, now: int) -> Effects:
        """One event at `now` (ms). Raises only for bugs (`InternalError`): what peers do wrong is answered."""
        context = self._context
        away = self._was_away(now)
        context.begin(now)
        self._advanced = False
        if away:
            context.counters["master_pauses_total"] += 1
            spare_sessions(context)
        if isinstance(event, Request):
            self._request(event)
        elif isinstance(event, Hello):
            hello(context, event)
        elif isinstance(event, Disconnected):
            disconnected(context, event.session)
        elif not isinstance(event, Tick):
            raise InvalidArgument(f"{type(event).__name__} is not an event")
        self._expire()
        if not self._advanced:
            self._run_slice()
        context.waiting.pump()
        context.waiting.flush()
        context.effects.instructions += context.watching.take()
        return context.effects

    def _was_away(self, now: int) -> bool:
        if now - self._context.now <= AWAY_MS:
            return False
        wanted = self.next_deadline()
        return wanted is not None and now - wanted > AWAY_MS

    def next_deadline(self) -> int | None:
        """When `step(Tick())` is wanted next (ms), the last `now` if at once; None: nothing is going to happen."""
        context = self._context
        if self._more_due or context.jobs or context.waiting.pump_pending:
            return context.now
        times = (
            context.leases.deadlines.next(),
            context.put_deadlines.next(),
            context.session_deadlines.next(),
            context.waiting.next_deadline(),
        )
        return min((time for time in times if time is not None), default=None)

    def evolve(self, fact: Fact) -> None:
        """Replay one fact of another life, or of the master that this one follows."""
        self._context.state.moment += 1
        self._context.state.evolve(fact)

    def durable_state(self) -> dict[str, object]:
        """What the facts built, as a plain value: equal for two cores that saw the same facts."""
        return durable_state(self._context.state)

    def validate(self) -> None:
        """Check every invariant across the whole state. Expensive; raises `InternalError`."""
        validate(self._context)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _request(self, event: Request) -> None:
        context = self._context
        session = context.state.sessions.by_id.get(event.session)
        if session is None:
            error = SessionExpired(f"session {event.session} is unknown or over: say hello again")
            context.effects.replies.append((event.session, event.request_id, ErrorInfo.of(error)))
            return
        session.last_seen = context.now
        try:
            if not self._is_new(session, event):
                return
            session.log.take(event.request_id)
            context.counters["requests_total"] += 1
            self._carry_out(session, event)
        except PoolError as refusal:
            self._refuse(session, event, refusal)

    def _is_new(self, session: Session, event: Request) -> bool:
        """False: a repeat, and what it gets is out. Raises where the request cannot be taken."""
        context, log = self._context, session.log
        if not 0 <= event.acknowledged < event.request_id:
            raise InvalidArgument(
                f"request {event.request_id} acknowledges up to {event.acknowledged}: only earlier ones"
            )
        log.acknowledge(event.acknowledged, event.received)
        seen = log.seen(event.request_id)
        if seen is Seen.NEW:
            if len(log.replies) >= context.config.max_requests_per_session:
                raise Overloaded(
                    f"{len(log.replies)} requests of this session are unanswered or unacknowledged, the most allowed "
                    "(max_requests_per_session)",
                    requests=len(log.replies),
                )
            return True
        context.counters["requests_repeated_total"] += 1
        if seen is Seen.ACKNOWLEDGED:
            raise InvalidArgument(f"request {event.request_id} was answered, and the answer acknowledged")
        reply = log.replies[event.request_id]
        if reply is not None:
            context.effects.replies.append((session.id, event.request_id, reply))
        return False

    def _refuse(self, session: Session, event: Request, error: PoolError) -> None:
        """The whole command failed. What was never taken is not in the log, and so not remembered."""
        context, reply = self._context, refusal(error)
        context.counters["requests_refused_total"] += 1
        if session.log.replies.get(event.request_id, reply) is None:
            context.answer(session.id, event.request_id, reply)
        else:
            context.effects.replies.append((session.id, event.request_id, reply))

    def _carry_out(self, session: Session, event: Request) -> None:
        context = self._context
        handler = HANDLERS.get(type(event.command))
        if handler is None:
            raise InvalidArgument(f"{type(event.command).__name__} is not a command")
        handler.check_role(session, event.command)
        result = handler.handle(context, session, event.request_id, event.command)
        if isinstance(result, Generator):
            request_id = event.request_id
            self._advance(Job(result, session.id, lambda reply: context.answer(session.id, request_id, reply)))
        elif result is not None:
            context.answer(session.id, event.request_id, result)

    # -- what goes on by itself --------------------------------------------------------------------------------------

    def _run_slice(self) -> None:
        job = self._context.jobs.next()
        if job is None:
            return
        if job.session is not None and not self._context.is_live(job.session):
            job.work.close()
            return
        self._advance(job)

    def _advance(self, job: Job) -> None:
        """One slice of a job; its reply if that was the last."""
        try:
            next(job.work)
        except StopIteration as end:
            reply: Reply | None = end.value
            if reply is not None and job.finish is not None:
                job.finish(reply)
        except PoolError as error:
            if job.finish is None:
                raise
            job.finish(refusal(error))
        else:
            self._context.jobs.add(job)
            self._advanced = True

    def _expire(self) -> None:
        """End what is due, a slice of each kind."""
        parts = [self._expire_leases(), self._expire_puts(), expire_sessions(self._context)]
        self._more_due = any([*parts, self._context.waiting.expire()])

    def _expire_leases(self) -> bool:
        context, work = self._context, self._context.new_slice()
        while (ident := context.leases.deadlines.pop_due(context.now)) is not None:
            context.counters["leases_expired_total"] += 1
            if work.spend(LEASE_UNITS + context.end_lease(LeaseId(ident))):
                return True
        return False

    def _expire_puts(self) -> bool:
        """An unfinished put of a live session ran out of time: nobody knows what of it may still land."""
        context, work = self._context, self._context.new_slice()
        while (ident := context.put_deadlines.pop_due(context.now)) is not None:
            put = context.state.puts.by_id[PutId(ident)]
            stray = () if put.put_id in context.waiting.untold else context.live_extents(put)
            context.close_put(put, stray, "expired")
            if work.spend(GRANT_UNITS):
                return True
        return False
