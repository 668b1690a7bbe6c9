"""What can go wrong in the pool, as types.

Every failure that a caller can meet is a `PoolError`: a kind (the class), a stable numeric `code`, a sentence for
people, `fields` for programs, and `retryable`, which says whether the same call may succeed later without a change.
Codes agree with Mooncake Store's where the meaning is the same, so that programs written for it can be served.

Two families matter to the layers above: errors of the *caller* (`InvalidArgument` and its kin; repeating is useless)
and errors of the *world* (a peer is gone, a lease ran out, no room). Nothing here knows how errors travel; the wire
form is `ErrorInfo` in `pykvpool.model.replies`, and `from_code` rebuilds the right type from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

#: What a field of an error may hold: it has to survive msgpack and JSON unchanged.
FieldValue = str | int | float | bool | None


class PoolError(Exception):
    """Base of every error the pool raises on purpose.

    Attributes:
        code: stable negative number; see the table in docs/errors.md.
        retryable: the same call may succeed later without any change by the caller.
        fields: facts about this occurrence (sizes in bytes, times in ms), for programs and logs.
    """

    code: ClassVar[int] = -1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **fields: FieldValue) -> None:
        super().__init__(message)
        self.message = message
        self.fields: Mapping[str, FieldValue] = fields

    @property
    def kind(self) -> str:
        """Name of the kind, e.g. ``PoolFull``: what people search for."""
        return type(self).__name__

    def __str__(self) -> str:
        return self.message


class InternalError(PoolError):
    """A rule of our own was broken: a bug in the pool, never the caller's fault."""

    code = -1


# -- the caller erred --------------------------------------------------------------------------------------------


class InvalidArgument(PoolError):
    """An argument is outside what is allowed; the message names it and says what is allowed."""

    code = -600


class ConfigError(InvalidArgument):
    """A configuration file, variable or flag is wrong; the message names the key and the source."""

    code = -602


class LimitExceeded(InvalidArgument):
    """A batch, frame, key or size is over a named limit."""

    code = -603


class NotSupported(InvalidArgument):
    """The pool does not offer this (a tier, an option, a missing extra); the message says what would."""

    code = -604


class NotOwner(PoolError):
    """A put_id or lease belongs to another session, or is no longer this session's to end."""

    code = -601


class Closed(PoolError):
    """The client, region or channel was used after it was closed."""

    code = -605


# -- objects -----------------------------------------------------------------------------------------------------


class KeyNotFound(PoolError):
    """No readable object under this key."""

    code = -704


class KeyConflict(PoolError):
    """The key exists with another size: content addressed keys never change their bytes."""

    code = -705


class NotReady(PoolError):
    """The object is still being written by another client."""

    code = -703
    retryable = True


class Leased(PoolError):
    """The object is leased (or hard pinned) and the call does not force its removal."""

    code = -706
    retryable = True


class LeaseExpired(PoolError):
    """The lease ran out before the transfer ended, or a lapsed lease was renewed: the bytes are discarded."""

    code = -707
    retryable = True


class StaleView(LeaseExpired):
    """A zero-copy view was left after its lease had lapsed: what was read through it may be other bytes."""

    code = -708
    retryable = True


class StalePut(PoolError):
    """A put_id that is no longer open (revoked, timed out, taken over)."""

    code = -709


# -- room --------------------------------------------------------------------------------------------------------


class PoolFull(PoolError):
    """No room, and within the deadline none could be made; `fields` count why nothing could go."""

    code = -200
    retryable = True


class TooFewNodes(PoolError):
    """More replicas asked (or required) than there are nodes that could hold one."""

    code = -201
    retryable = True


# -- cluster and transfers ---------------------------------------------------------------------------------------


class SegmentGone(PoolError):
    """The segment, or this generation of it, is not mounted any more."""

    code = -100
    retryable = True


class SessionExpired(PoolError):
    """The session lapsed or was superseded by a newer one of the same name; its commands are refused."""

    code = -101
    retryable = True


class Unavailable(PoolError):
    """Nobody answers at an address; the message says what was tried."""

    code = -900
    retryable = True


class DeadlineExceeded(PoolError):
    """The answer did not come within the deadline."""

    code = -901
    retryable = True


class Refused(PoolError):
    """The handshake failed: version, cluster or token do not match; the message says which."""

    code = -902


class ProtocolError(PoolError):
    """The peer sent something that is not our protocol: malformed, oversized, truncated, unknown."""

    code = -903


class TransferFailed(PoolError):
    """A data transfer failed on every fabric and replica tried; the message says what was tried."""

    code = -800
    retryable = True


class ChecksumMismatch(PoolError):
    """The bytes that arrived are not the bytes that were committed under this key; they are discarded."""

    code = -801
    retryable = True


class GpuFailed(PoolError):
    """The GPU's driver failed a call; the message names the call and the driver's error."""

    code = -802


class Overloaded(PoolError):
    """A bounded queue is full (requests in flight, leases or bytes held per session)."""

    code = -904
    retryable = True


def _kinds(base: type[PoolError]) -> list[type[PoolError]]:
    return [base, *(kind for sub in base.__subclasses__() for kind in _kinds(sub))]


#: code -> kind. InternalError shares -1 with the base class and stands for it.
KINDS: dict[int, type[PoolError]] = {kind.code: kind for kind in _kinds(PoolError)}


def from_code(code: int, message: str, fields: Mapping[str, FieldValue] | None = None) -> PoolError:
    """Rebuild the error of kind `code` (an unknown code gives a plain `PoolError` that keeps its message)."""
    kind = KINDS.get(code, PoolError)
    return kind(message, **dict(fields or {}))


def invariant(condition: object, message: str) -> None:
    """Raise `InternalError` unless `condition` holds. Unlike ``assert`` it survives ``python -O``."""
    if not condition:
        raise InternalError(f"broken invariant: {message}")
