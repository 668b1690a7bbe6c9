"""Where an error becomes an answer: what the peer did wrong is told, a bug of ours is not hidden in a reply."""

from __future__ import annotations

from pykvpool.errors import InternalError, PoolError
from pykvpool.model.replies import ErrorInfo


def refusal(error: PoolError) -> ErrorInfo:
    """The error as an answer; a broken invariant is raised again instead."""
    if isinstance(error, InternalError):
        raise error
    return ErrorInfo.of(error)
