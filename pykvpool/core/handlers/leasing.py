"""renew and release."""

from __future__ import annotations

from pykvpool.core.context import Context
from pykvpool.core.handlers.checks import check_batch, check_duration
from pykvpool.core.refusal import refusal
from pykvpool.core.sessions import Session
from pykvpool.errors import NotOwner, PoolError
from pykvpool.model.commands import Release, Renew
from pykvpool.model.ids import RequestId
from pykvpool.model.replies import Done, ErrorInfo


def renew(context: Context, session: Session, request_id: RequestId, command: Renew) -> Done:
    check_batch("leases", command.leases)
    check_duration("lease_ms", command.lease_ms)
    errors: list[ErrorInfo | None] = []
    for lease in command.leases:
        try:
            context.leases.renew(session.id, lease, command.lease_ms, context.now)
            errors.append(None)
        except PoolError as error:
            errors.append(refusal(error))
    return done(errors)


def release(context: Context, session: Session, request_id: RequestId, command: Release) -> Done:
    check_batch("leases", command.leases)
    errors: list[ErrorInfo | None] = []
    for lease_id in command.leases:
        lease = context.leases.by_id.get(lease_id)
        if lease is not None and lease.session != session.id:
            errors.append(ErrorInfo.of(NotOwner(f"lease {lease_id} belongs to another session")))
            continue
        context.end_lease(lease_id)
        errors.append(None)
    return done(errors)


def done(errors: list[ErrorInfo | None], degraded: tuple[int, ...] = ()) -> Done:
    """An empty tuple stands for "all fine"."""
    return Done(tuple(errors) if any(error is not None for error in errors) else (), degraded)
