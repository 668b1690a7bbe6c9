"""What every command is held to before anything is decided (P12): sizes of batches, keys, scopes, times."""

from __future__ import annotations

from collections.abc import Sized

from pykvpool.core.context import Context
from pykvpool.errors import InvalidArgument, LimitExceeded, PoolError
from pykvpool.model.commands import MAX_BATCH_KEYS
from pykvpool.model.ids import ScopeId
from pykvpool.model.keys import MAX_KEY_BYTES, key_bytes


def check_batch(what: str, batch: Sized, limit: int = MAX_BATCH_KEYS) -> None:
    if len(batch) > limit:
        raise LimitExceeded(
            f"{len(batch)} {what} in one command: at most {limit} are allowed, split the batch",
            count=len(batch),
            limit=limit,
        )


def check_column(what: str, column: Sized, keys: Sized, optional: bool = False) -> None:
    """Columns run in parallel."""
    if len(column) != len(keys) and not (optional and not len(column)):
        raise InvalidArgument(f"{len(column)} {what} for a batch of {len(keys)}: one for each is needed")


def check_scope(context: Context, scope: ScopeId) -> None:
    if not 0 <= scope < len(context.state.scopes):
        raise InvalidArgument(f"scope {scope} is unknown to this master: intern it first", scope=scope)


def check_hashes(hashes: tuple[bytes, ...]) -> None:
    """For commands that answer a batch as a whole. Two passes in C."""
    check_batch("hashes", hashes)
    if hashes and not (min(map(len, hashes)) and max(map(len, hashes)) <= MAX_KEY_BYTES):
        for hash_ in hashes:
            key_bytes(hash_)


def check_scoped(context: Context, scope: ScopeId, hashes: tuple[bytes, ...]) -> None:
    """For commands that answer key by key: the keys themselves are checked one by one, by `key_error`."""
    check_scope(context, scope)
    check_batch("keys", hashes)


def key_error(hash_: bytes) -> PoolError | None:
    """What is wrong with one key."""
    if 0 < len(hash_) <= MAX_KEY_BYTES:
        return None
    try:
        key_bytes(hash_)
    except InvalidArgument as error:
        return error
    return None


def check_duration(what: str, value_ms: int) -> None:
    if value_ms < 0:
        raise InvalidArgument(f"{what} is {value_ms}: milliseconds, 0 or more")
