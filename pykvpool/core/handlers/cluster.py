"""The pool as a whole: intern, cluster_state, heartbeat, goodbye."""

from __future__ import annotations

from pykvpool.core.context import Context
from pykvpool.core.handlers.checks import check_batch, check_scope
from pykvpool.core.liveness import end_session
from pykvpool.core.sessions import Session
from pykvpool.errors import InvalidArgument, LimitExceeded
from pykvpool.model.commands import MAX_SCOPES, ClusterState, Goodbye, Heartbeat, Intern, Watch
from pykvpool.model.facts import ScopeInterned
from pykvpool.model.ids import RequestId, ScopeId
from pykvpool.model.keys import MAX_SCOPE_FIELD_BYTES, Scope
from pykvpool.model.replies import Beat, Done, Interned, SegmentState, SessionState, State

#: Most scopes of one master: models x ranks x groups of a large cluster many times over. Each has an index of its own.
MAX_INTERNED_SCOPES = 65_536


def intern(context: Context, session: Session, request_id: RequestId, command: Intern) -> Interned:
    check_batch("scopes", command.scopes, MAX_SCOPES)
    for scope in command.scopes:
        _check_scope(scope)
    state = context.state
    new = dict.fromkeys(scope for scope in command.scopes if scope not in state.scope_ids)
    if len(state.scopes) + len(new) > MAX_INTERNED_SCOPES:
        raise LimitExceeded(f"the pool knows {len(state.scopes)} scopes, at most {MAX_INTERNED_SCOPES} are allowed")
    for scope in new:
        context.emit(ScopeInterned(ScopeId(len(state.scopes)), scope))
    return Interned(tuple(state.scope_ids[scope] for scope in command.scopes))


def _check_scope(scope: Scope) -> None:
    for name, text in (("namespace", scope.namespace), ("fingerprint", scope.fingerprint), ("rank", scope.rank)):
        if len(text.encode("utf-8", "surrogatepass")) > MAX_SCOPE_FIELD_BYTES:
            raise LimitExceeded(f"the scope's {name} is longer than {MAX_SCOPE_FIELD_BYTES} bytes")
    if not scope.namespace:
        raise InvalidArgument("a scope needs a namespace")
    if scope.group < 0:
        raise InvalidArgument(f"group {scope.group}: 0 or more")


def watch(context: Context, session: Session, request_id: RequestId, command: Watch) -> Done:
    check_batch("scopes", command.scopes, MAX_SCOPES)
    for scope in command.scopes:
        check_scope(context, scope)
    context.watching.watch(session.id, command.scopes)
    return Done()


def heartbeat(context: Context, session: Session, request_id: RequestId, command: Heartbeat) -> Beat:
    return Beat(context.config.session_ttl_ms)


def goodbye(context: Context, session: Session, request_id: RequestId, command: Goodbye) -> Done | None:
    """Answered before the session ends: afterwards there is nobody to answer."""
    context.answer(session.id, request_id, Done())
    end_session(context, session, "goodbye")
    return None


def cluster_state(context: Context, session: Session, request_id: RequestId, command: ClusterState) -> State:
    state, leases, waiting = context.state, context.leases, context.waiting
    segments = tuple(
        SegmentState(
            segment.id, segment.node, segment.space.capacity, segment.space.free_bytes,
            segment.space.capacity - segment.space.free_bytes - segment.quarantined_bytes, segment.quarantined_bytes,
            segment.descriptor.endpoints, segment.suspect,
        )
        for segment in state.segments.by_id.values()
        if not segment.going
    )  # fmt: skip
    sessions = tuple(
        SessionState(
            other.id, other.name, other.role, other.connected, context.now - other.last_seen,
            len(leases.of_session(other.id)), len(state.puts.by_session.get(other.id, ())),
            len(waiting.by_session.get(other.id, ())),
        )
        for other in state.sessions.by_id.values()
    )  # fmt: skip
    return State(
        segments, sessions, state.catalog.count, state.catalog.resident_bytes, len(leases.by_id),
        len(state.puts.by_id), waiting.undecided, len(state.scopes), dict(context.counters),
    )  # fmt: skip
