"""renew and release."""

from __future__ import annotations

from pykvpool.core.context import Context
from pykvpool.core.handlers.checks import check_batch, check_duration
from pykvpool.core.jobs import Work
from pykvpool.core.leases import LEASE_UNITS
from pykvpool.core.refusal import refusal
from pykvpool.core.sessions import Session
from pykvpool.errors import NotOwner, PoolError
from pykvpool.model.commands import Release, Renew
from pykvpool.model.ids import RequestId, SessionId
from pykvpool.model.replies import Done, ErrorInfo

#: Units of a slice (see `jobs`) that renewing one lease costs.
RENEW_UNITS = 2


def renew(context: Context, session: Session, request_id: RequestId, command: Renew) -> Work:
    check_batch("leases", command.leases)
    check_duration("lease_ms", command.lease_ms)
    return _renew_all(context, session.id, command)


def _renew_all(context: Context, session: SessionId, command: Renew) -> Work:
    errors, work = list[ErrorInfo | None](), context.new_slice()
    for lease in command.leases:
        if work.is_over:
            yield
        try:
            context.leases.renew(session, lease, command.lease_ms, context.now)
            errors.append(None)
        except PoolError as error:
            errors.append(refusal(error))
        work.spend(RENEW_UNITS)
    return done(errors)


def release(context: Context, session: Session, request_id: RequestId, command: Release) -> Work:
    check_batch("leases", command.leases)
    return _release_all(context, session.id, command)


def _release_all(context: Context, session: SessionId, command: Release) -> Work:
    errors, work = list[ErrorInfo | None](), context.new_slice()
    for lease_id in command.leases:
        if work.is_over:
            yield
        lease = context.leases.by_id.get(lease_id)
        if lease is not None and lease.session != session:
            errors.append(ErrorInfo.of(NotOwner(f"lease {lease_id} belongs to another session")))
            work.spend(RENEW_UNITS)
            continue
        errors.append(None)
        work.spend(LEASE_UNITS + context.end_lease(lease_id))
    return done(errors)


def done(errors: list[ErrorInfo | None], degraded: tuple[int, ...] = ()) -> Done:
    """An empty tuple stands for "all fine"."""
    return Done(tuple(errors) if any(error is not None for error in errors) else (), degraded)
