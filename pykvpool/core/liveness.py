"""Sessions come, fall silent, come back and end.

Any request is a sign of life. A lost connection starts a shorter clock; until it runs out the session is whole, and a
node's segments are *suspect*: read from last, not written to. When a session ends, its commands are refused at once;
its unfinished puts go to quarantine and its tickets go in slices, and a node's segments go. Its leases end with its
goodbye; else they run out in their own time, as a reader that cannot hear us believes in them until then.
"""

from __future__ import annotations

from collections.abc import Generator

from pykvpool.core.context import Context
from pykvpool.core.jobs import Work
from pykvpool.core.leases import LEASE_UNITS
from pykvpool.core.loss import lose_segment
from pykvpool.core.refusal import refusal
from pykvpool.core.sessions import ROLES, Session
from pykvpool.errors import InvalidArgument, PoolError, SessionExpired
from pykvpool.model.events import Hello
from pykvpool.model.facts import SessionEnded, SessionOpened
from pykvpool.model.ids import RequestId, SessionId
from pykvpool.model.instructions import SessionOver
from pykvpool.model.replies import Reply, Welcome

#: Longest session name, in characters: host names and process names fit many times.
MAX_NAME_CHARS = 256
#: Session that a hello's answer is addressed to: the real one is in the answer.
NO_SESSION = SessionId(0)
#: How a session ended, for people, by the reason that its fact has.
STORIES = {
    "goodbye": "it said goodbye",
    "expired": "expired: no sign of life came in time",
    "superseded": "superseded by a newer session of its name",
}
#: Units of a slice (see `jobs`) that closing one put costs.
PUT_UNITS = 16


def hello(context: Context, event: Hello) -> None:
    """Open, resume or supersede; the answer goes to the connection's number."""
    try:
        reply: Reply = _welcome(context, event)
    except PoolError as error:
        reply = refusal(error)
    context.effects.replies.append((NO_SESSION, RequestId(event.connection), reply))


def _welcome(context: Context, event: Hello) -> Welcome:
    if not 0 < len(event.name) <= MAX_NAME_CHARS:
        raise InvalidArgument(f"a session name has 1 to {MAX_NAME_CHARS} characters, not {len(event.name)}")
    if event.role not in ROLES:
        raise InvalidArgument(f"role {event.role!r} is unknown: one of {', '.join(ROLES)}")
    sessions, config = context.state.sessions, context.config
    session = sessions.by_name.get(sessions.name_of(event.role, event.name))
    if session is not None and session.incarnation == event.incarnation:
        if session.role != event.role:
            raise InvalidArgument(f"session {event.name!r} is a {session.role}, it cannot come back as a {event.role}")
        _resume(context, session)
        return Welcome(session.id, config.session_ttl_ms, config.lease_ms, context.epoch, True)
    reason = sessions.reasons.get((event.name, event.incarnation))
    if reason is not None:
        raise SessionExpired(f"{STORIES[reason]}; an incarnation that is over does not come back", reason=reason)
    if event.resume:
        raise SessionExpired(f"the master does not know session {event.resume}: come back with a new one")
    if session is not None:
        context.counters["sessions_superseded_total"] += 1
        end_session(context, session, "superseded")
    context.counters["sessions_opened_total"] += 1
    session_id = SessionId(sessions.last_id + 1)
    context.emit(SessionOpened(session_id, event.name, event.role, event.incarnation))
    sessions.by_id[session_id].last_seen = context.now
    context.arm_session(session_id)
    return Welcome(session_id, config.session_ttl_ms, config.lease_ms, context.epoch, False)


def _resume(context: Context, session: Session) -> None:
    session.connected = True
    session.last_seen = context.now
    _set_suspect(context, session.id, False)
    if session.role == "node":
        context.run_later(_requeue(context, session.id))
    context.fences.resume(session.id)


def _requeue(context: Context, node: SessionId) -> Work:
    """A node is back: what waited for it, in slices."""
    work = context.new_slice()
    yield from context.state.evictor.requeue_elsewhere(work)
    yield from context.hash_requests.resume(node, work)
    return None


def disconnected(context: Context, session_id: SessionId) -> None:
    """The control connection is gone; the session has its grace to come back."""
    session = context.state.sessions.by_id.get(session_id)
    if session is None or not session.connected:
        return
    session.connected = False
    session.disconnected_at = context.now
    _set_suspect(context, session_id, True)
    context.arm_session(session_id)


def _set_suspect(context: Context, session_id: SessionId, suspect: bool) -> None:
    context.state.segments.set_suspect(session_id, suspect)
    context.state.evictor.room_version += 1


def goodbye(context: Context, session: Session) -> None:
    """The session leaves in order: nothing of it is under way but what it named uncertain; that stays in quarantine."""
    end_session(context, session, "goodbye")


def spare_sessions(context: Context) -> None:
    """We were away ourselves (stopped, suspended): silence of that time proves nothing, all begin to be silent now.

    Leases are not spared: their holders' time went on.
    """
    for session in context.state.sessions.by_id.values():
        session.last_seen = context.now
        if not session.connected:
            session.disconnected_at = context.now


def expire_sessions(context: Context) -> bool:
    """End sessions that fell silent, one slice; True: there is more."""
    work = context.new_slice()
    while (ident := context.session_deadlines.pop_due(context.now)) is not None:
        session = context.state.sessions.by_id[SessionId(ident)]
        context.counters["sessions_expired_total"] += 1
        end_session(context, session, "expired")
        if work.spend(PUT_UNITS):
            return True
    return False


def end_session(context: Context, session: Session, reason: str) -> None:
    """`reason`: "goodbye", "expired" or "superseded". The slow part follows in slices."""
    if session.connected and reason != "goodbye":
        context.instruct(session.id, SessionOver(STORIES[reason]))
    context.emit(SessionEnded(session.id, reason))
    context.watching.drop(session.id)
    for segment in context.state.segments.of_session(session.id):
        lose_segment(context, segment, f"session of its node {reason}")
    context.run_later(_clear(context, session.id, reason))


def _clear(context: Context, session: SessionId, reason: str) -> Work:
    drained = reason == "goodbye"
    if drained:
        yield from context.fences.all_drained(session, context.new_slice())
    yield from _close_puts(context, session, "revoked" if drained else reason, drained)
    context.fences.session_over(session)
    if drained:
        work = context.new_slice()
        for lease_id in context.leases.of_session(session):
            if work.spend(LEASE_UNITS + context.end_lease(lease_id)):
                yield
    yield from context.waiting.drop_session(session, context.new_slice())
    return None


def _close_puts(context: Context, session: SessionId, reason: str, drained: bool) -> Generator[None, None, None]:
    puts, work = context.state.puts, context.new_slice()
    for put_id in list(puts.by_session.get(session, ())):
        put = puts.by_id.get(put_id)
        if put is not None:
            nothing_lands = drained or put_id in context.waiting.untold
            context.close_put(put, () if nothing_lands else context.live_extents(put), reason)
        if work.spend(PUT_UNITS):
            yield
