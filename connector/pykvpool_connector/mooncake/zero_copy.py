"""Puts from, and gets into, memory that the program registered: the fabric alone touches the bytes.

Addresses and sizes become views of registered memory (`pointers`), and those are the pieces that the fabric reads or
fills. One bad address costs its own key; a list that does not fit the keys costs the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from pykvpool.client import GetResult
from pykvpool.errors import InvalidArgument, PoolError
from pykvpool.memory.buffers import MAX_PIECES
from pykvpool_connector.mooncake.attachment import Attachment
from pykvpool_connector.mooncake.base import StoreBase
from pykvpool_connector.mooncake.calls import OK, code, per_key
from pykvpool_connector.mooncake.checks import check_equal, check_keys, key_to_find, key_to_store, size_of
from pykvpool_connector.mooncake.copying_puts import PutForm
from pykvpool_connector.mooncake.puts import Value, put_all, upsert_all
from pykvpool_connector.mooncake.replicate import ReplicateConfig


class ZeroCopy(StoreBase):
    """Part of `MooncakeDistributedStore`."""

    # -- memory ----------------------------------------------------------------------------------------------------

    @code
    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Announce host memory of this process for the calls below; it must stay until `unregister_buffer`."""
        self._open.pointers.register(buffer_ptr, size)
        return OK

    @code
    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Take it back, when no call uses it any more."""
        self._open.pointers.unregister(buffer_ptr)
        return OK

    # -- puts ------------------------------------------------------------------------------------------------------

    @code
    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """Store `size` bytes at `buffer_ptr`. 0, also where the key exists (the first value stays then); or a code."""
        return self._put_from("put_from", put_all, [key], [[buffer_ptr]], [[size]], config)[0]

    @per_key
    def batch_put_from(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        """`put_from` for many keys; a code for each."""
        check_equal("buffer_ptrs and sizes", keys, buffer_ptrs, sizes)
        return self._put_from("batch_put_from", put_all, keys, _each(buffer_ptrs), _each(sizes), config)

    @per_key
    def batch_put_from_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Store objects that lie in several places each, gathered in order; a code for each."""
        check_equal("all_buffer_ptrs and all_sizes", keys, all_buffer_ptrs, all_sizes)
        return self._put_from("batch_put_from_multi_buffers", put_all, keys, all_buffer_ptrs, all_sizes, config)

    @code
    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig | None = None,
    ) -> int:
        """Store the metadata followed by the data as one object."""
        pointers, sizes = [metadata_buffer_ptr, buffer_ptr], [metadata_size, size]
        return self._put_from("put_from_with_metadata", put_all, [key], [pointers], [sizes], config)[0]

    @code
    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """`put_from` in place of what is there."""
        return self._put_from("upsert_from", upsert_all, [key], [[buffer_ptr]], [[size]], config)[0]

    @per_key
    def batch_upsert_from(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        """`upsert_from` for many keys; a code for each."""
        check_equal("buffer_ptrs and sizes", keys, buffer_ptrs, sizes)
        return self._put_from("batch_upsert_from", upsert_all, keys, _each(buffer_ptrs), _each(sizes), config)

    # -- gets ------------------------------------------------------------------------------------------------------

    @code
    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Read an object into `size` bytes at `buffer_ptr`; its size, or a code. Too small: nothing is written."""
        return self._get_into("get_into", [key], [[buffer_ptr]], [[size]])[0]

    @per_key
    def batch_get_into(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        """`get_into` for many keys; a size or code for each."""
        check_equal("buffer_ptrs and sizes", keys, buffer_ptrs, sizes)
        return self._get_into("batch_get_into", keys, _each(buffer_ptrs), _each(sizes))

    @per_key
    def batch_get_into_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Read objects into several places each, scattered in order; a size or code for each.

        `prefer_alloc_in_same_node` is taken for its caller's sake: reads go to whichever copy is nearest anyway.
        """
        check_equal("all_buffer_ptrs and all_sizes", keys, all_buffer_ptrs, all_sizes)
        return self._get_into("batch_get_into_multi_buffers", keys, all_buffer_ptrs, all_sizes)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _put_from(
        self,
        what: str,
        form: PutForm,
        keys: Sequence[str],
        pointers: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None,
    ) -> list[int]:
        check_keys(list(keys))
        attachment = self._open
        wish = (config or ReplicateConfig()).wish(len(keys), attachment.own_node)
        values: list[Value | PoolError] = []
        for key, addresses, lengths in zip(keys, pointers, sizes, strict=True):
            try:
                values.append(Value(key_to_store(key), registered(attachment, addresses, lengths)))
            except PoolError as error:
                values.append(error)
        return self._codes(what, keys, self._run(lambda attachment: form(attachment, values, wish)))

    def _get_into(
        self, what: str, keys: Sequence[str], pointers: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]
    ) -> list[int]:
        check_keys(list(keys))
        attachment = self._open
        results: list[GetResult | PoolError | None] = [None] * len(keys)
        positions, raw, buffers = [], [], []
        for position, (key, addresses, lengths) in enumerate(zip(keys, pointers, sizes, strict=True)):
            try:
                found, pieces = key_to_find(key), registered(attachment, addresses, lengths)
            except PoolError as error:
                results[position] = error
            else:
                positions.append(position)
                raw.append(found)
                buffers.append(pieces)
        got = self._read(lambda client: client.get_into_batch(raw, buffers))
        for position, result in zip(positions, got, strict=True):
            results[position] = result
        return self._sizes(what, keys, results)

    def _sizes(self, what: str, keys: Sequence[object], results: Sequence[GetResult | PoolError | None]) -> list[int]:
        return [
            result.size_bytes
            if isinstance(result, GetResult)
            else self._code(what, key, result or InvalidArgument("nothing was read"))
            for key, result in zip(keys, results, strict=True)
        ]


def registered(attachment: Attachment, addresses: Sequence[int], lengths: Sequence[int]) -> list[memoryview]:
    """Views of registered memory. Raises `InvalidArgument` (not registered, no bytes, unequal lists), `TypeError`."""
    check_equal("sizes", addresses, lengths)
    if not 0 < len(addresses) <= MAX_PIECES:
        raise InvalidArgument(f"{len(addresses)} buffers for one object: 1 to {MAX_PIECES} are allowed")
    return [
        attachment.pointers.find(address, size_of("size", length))
        for address, length in zip(addresses, lengths, strict=True)
    ]


def _each(values: Sequence[int]) -> list[list[int]]:
    return [[each] for each in values]
