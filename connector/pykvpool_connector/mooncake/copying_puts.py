"""put, put_parts, put_batch, and their upsert forms: values come as Python buffers.

Mooncake copies such values through a local buffer of `local_buffer_size`; here they go straight from where they lie,
but the size still bounds what one call may put, so that a store set up with 0 cannot put this way.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pykvpool.errors import InvalidArgument, PoolError
from pykvpool_connector.mooncake.attachment import Attachment
from pykvpool_connector.mooncake.base import StoreBase
from pykvpool_connector.mooncake.calls import OK, code
from pykvpool_connector.mooncake.checks import check_equal, check_key, check_keys, key_to_store, value_piece
from pykvpool_connector.mooncake.puts import Value, put_all, upsert_all
from pykvpool_connector.mooncake.replicate import PutWish, ReplicateConfig

#: `put_all` or `upsert_all`.
PutForm = Callable[[Attachment, Sequence[Value | PoolError], PutWish], Coroutine[Any, Any, list[PoolError | None]]]


class CopyingPuts(StoreBase):
    """Part of `MooncakeDistributedStore`."""

    @code
    def put(self, key: str, value: object, config: ReplicateConfig | None = None) -> int:
        """Store a bytes-like value. 0, also where the key exists (then the first value stays); else a code."""
        return self._put_parts("put", put_all, key, (value,), config)

    @code
    def put_parts(self, key: str, *parts: object, config: ReplicateConfig | None = None) -> int:
        """Store the parts, one after the other, as one object. As `put`."""
        return self._put_parts("put_parts", put_all, key, parts, config)

    @code
    def put_batch(self, keys: list[str], values: list[object], config: ReplicateConfig | None = None) -> int:
        """Store many values: 0, or the code of the first that failed. Where one is invalid nothing is stored."""
        return self._put_batch("put_batch", put_all, keys, values, config)

    @code
    def upsert(self, key: str, value: object, config: ReplicateConfig | None = None) -> int:
        """Store a value, in place of the one that is there."""
        return self._put_parts("upsert", upsert_all, key, (value,), config)

    @code
    def upsert_parts(self, key: str, *parts: object, config: ReplicateConfig | None = None) -> int:
        """Store the parts as one object, in place of the one that is there."""
        return self._put_parts("upsert_parts", upsert_all, key, parts, config)

    @code
    def upsert_batch(self, keys: list[str], values: list[object], config: ReplicateConfig | None = None) -> int:
        """Store many values, each in place of what is there. As `put_batch`."""
        return self._put_batch("upsert_batch", upsert_all, keys, values, config)

    def _put_parts(
        self, what: str, form: PutForm, key: str, parts: Sequence[object], config: ReplicateConfig | None
    ) -> int:
        check_key(key)
        pieces = [value_piece(part) for part in parts]
        attachment = self._open
        wish = (config or ReplicateConfig()).wish(1, attachment.own_node)
        item = Value(key_to_store(key), pieces)
        _check_room(attachment, [item])
        [error] = self._run(lambda attachment: form(attachment, [item], wish))
        return self._code(what, key, error)

    def _put_batch(
        self, what: str, form: PutForm, keys: list[str], values: list[object], config: ReplicateConfig | None
    ) -> int:
        check_keys(keys)
        check_equal("values", keys, values)
        pieces = [value_piece(value) for value in values]
        attachment = self._open
        wish = (config or ReplicateConfig()).wish(len(keys), attachment.own_node)
        items = [Value(key_to_store(key), [piece]) for key, piece in zip(keys, pieces, strict=True)]
        _check_room(attachment, items)
        codes = self._codes(what, keys, self._run(lambda attachment: form(attachment, items, wish)))
        return next((each for each in codes if each != OK), OK)


def _check_room(attachment: Attachment, values: Sequence[Value]) -> None:
    """Raises `InvalidArgument` for an empty value, and for more than the local buffer would hold."""
    for value in values:
        if not value.size_bytes:
            raise InvalidArgument(f"{value.key!r:.80}: the value is empty: an object has at least one byte")
    total = sum(value.size_bytes for value in values)
    limit = attachment.settings.buffer_bytes
    if total > limit:
        raise InvalidArgument(
            f"{total} bytes in one call, local_buffer_size is {limit}: set it up larger, or put from registered memory",
            size_bytes=total,
            limit_bytes=limit,
        )
