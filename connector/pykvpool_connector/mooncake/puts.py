"""Putting, on the store's loop: what Mooncake calls a put and an upsert, made of the pool's verbs.

A put of a key that exists is success and keeps the first value, also where the sizes differ (the pool's `KeyConflict`).
An upsert is a put; where the key exists, the old object is unlinked and the put repeated. Whoever reads the old bytes
reads them to the end; whoever asks between the two steps finds nothing, but never a mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pykvpool.client import PutItem, PutResult
from pykvpool.errors import InvalidArgument, KeyConflict, KeyNotFound, PoolError
from pykvpool.model.keys import key_text
from pykvpool.model.objects import Pin
from pykvpool_connector.mooncake.attachment import Attachment
from pykvpool_connector.mooncake.replicate import PutWish

#: Times an upsert replaces what others put meanwhile; then the last word is theirs.
UPSERT_TRIES = 8


@dataclass(frozen=True, slots=True)
class Value:
    """One object to put: its pieces lie in memory that stays as it is until the put is over."""

    key: bytes
    pieces: Sequence[memoryview]

    @property
    def size_bytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)


async def put_all(attachment: Attachment, values: Sequence[Value | PoolError], wish: PutWish) -> list[PoolError | None]:
    """Put every value that is none of an error; None or an error for each, in order."""
    return await _fill_in(attachment, values, wish, replace=False)


async def upsert_all(
    attachment: Attachment, values: Sequence[Value | PoolError], wish: PutWish
) -> list[PoolError | None]:
    """As `put_all`, but what is there already is replaced."""
    return await _fill_in(attachment, values, wish, replace=True)


async def _fill_in(
    attachment: Attachment, values: Sequence[Value | PoolError], wish: PutWish, *, replace: bool
) -> list[PoolError | None]:
    """Good values go to the pool in one batch; bad ones keep the error they have."""
    good = [(position, value) for position, value in enumerate(values) if isinstance(value, Value)]
    results = [value if isinstance(value, PoolError) else None for value in values]
    todo = good
    for tries_left in reversed(range(UPSERT_TRIES)):
        existing: list[tuple[int, Value]] = []
        for (position, value), result in zip(todo, await _put(attachment, [v for _, v in todo], wish), strict=True):
            if isinstance(result, KeyConflict) or (isinstance(result, PutResult) and result.existed):
                existing.append((position, value))
            else:
                results[position] = result if isinstance(result, PoolError) else None
        if not (replace and existing and tries_left):
            break
        todo = await _unlink(attachment, existing, results)
    return results


async def _put(attachment: Attachment, values: Sequence[Value], wish: PutWish) -> list[PutResult | PoolError]:
    if not values:
        return []
    put = await attachment.client.put_batch(
        [PutItem(value.key, list(value.pieces)) for value in values],
        replicas=wish.replicas,
        preferred_node=wish.preferred_node,
        pin=wish.pin,
    )
    if wish.pin is Pin.SOFT and wish.soft_ttl_ms is not None:
        stored = [value.key for value, result in zip(values, put, strict=True) if isinstance(result, PutResult)]
        attachment.unpin_later(stored, wish.soft_ttl_ms)
    return put


async def _unlink(
    attachment: Attachment, existing: list[tuple[int, Value]], results: list[PoolError | None]
) -> list[tuple[int, Value]]:
    """Unlink the old objects; returns what is to be put anew. What could never be put keeps its old value."""
    state = await attachment.client.state()
    largest = max((segment.capacity_bytes for segment in state.segments), default=0)
    replaced = []
    for position, value in existing:
        if value.size_bytes > largest:
            results[position] = InvalidArgument(
                f"{key_text(value.key)}: {value.size_bytes} bytes, the largest segment has {largest}"
            )
        else:
            replaced.append((position, value))
    errors = await attachment.client.remove_batch([value.key for _, value in replaced], force=True)
    todo = []
    for (position, value), error in zip(replaced, errors, strict=True):
        if error is None or isinstance(error, KeyNotFound):
            todo.append((position, value))
        else:
            results[position] = error
    return todo
