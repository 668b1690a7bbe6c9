"""`get_into_ranges`: parts of objects into parts of registered buffers, many in one call.

The shape is Mooncake's: for each buffer a list of keys, for each key a list of fragments. Only the fragments are moved;
a fragment that cannot be had has a code in its place and costs no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pykvpool.client import GetResult, RangeItem
from pykvpool.errors import InvalidArgument, PoolError
from pykvpool_connector.mooncake.attachment import Attachment
from pykvpool_connector.mooncake.base import StoreBase
from pykvpool_connector.mooncake.checks import check_equal, check_key, integer, key_to_find


@dataclass(frozen=True, slots=True)
class Fragment:
    """One fragment, where its result goes, and what it asks for."""

    results: list[int]
    position: int
    item: RangeItem


class Ranges(StoreBase):
    """Part of `MooncakeDistributedStore`."""

    def get_into_ranges(
        self,
        buffer_ptrs: list[int],
        all_keys: list[list[str]],
        all_dst_offsets: list[list[list[int]]],
        all_src_offsets: list[list[list[int]]],
        all_sizes: list[list[list[int]]],
    ) -> list[list[list[int]]]:
        """Read fragments; ``result[i][j][k]`` is the size of fragment k of key j of buffer i, or a code.

        Each buffer pointer may lie anywhere within registered memory; a fragment must lie within the same registration.
        """
        columns = (all_dst_offsets, all_src_offsets, all_sizes)
        results: list[list[list[int]]] = [[[] for _ in keys] for keys in all_keys]
        fragments: list[Fragment] = []
        try:
            attachment = self._open
            check_equal("get_into_ranges", buffer_ptrs, all_keys, *columns)
        except PoolError as error:
            return self._everywhere(buffer_ptrs, all_keys, all_sizes, error)
        for i, pointer in enumerate(buffer_ptrs):
            try:
                check_equal("the offsets and sizes of a buffer", all_keys[i], *(column[i] for column in columns))
            except PoolError as error:
                results[i] = [[self._code("get_into_ranges", key, error)] for key in all_keys[i]]
                continue
            for j, key in enumerate(all_keys[i]):
                rows = [column[i][j] for column in columns]
                fragments += self._fragments(attachment, pointer, key, rows, results[i][j])
        self._fill(fragments)
        return results

    def _fragments(
        self, attachment: Attachment, pointer: int, key: str, rows: Sequence[Sequence[int]], results: list[int]
    ) -> list[Fragment]:
        """The fragments of one key; those that cannot be right have their code in `results` already."""
        check_key(key)
        try:
            check_equal("the fragments of a key", rows[0], *rows[1:])
        except PoolError as error:
            results.append(self._code("get_into_ranges", key, error))
            return []
        good = []
        for to, start, size in zip(*rows, strict=True):
            results.append(0)
            try:
                item = fragment_item(attachment, key, pointer, to, start, size)
            except PoolError as error:
                results[-1] = self._code("get_into_ranges", key, error)
            else:
                good.append(Fragment(results, len(results) - 1, item))
        return good

    def _fill(self, fragments: Sequence[Fragment]) -> None:
        items = [fragment.item for fragment in fragments]
        found: Sequence[GetResult | PoolError]
        try:
            found = self._read(lambda client: client.get_ranges_into(items))
        except PoolError as error:
            found = [error] * len(items)
        for fragment, result in zip(fragments, found, strict=True):
            fragment.results[fragment.position] = (
                result.size_bytes
                if isinstance(result, GetResult)
                else self._code("get_into_ranges", fragment.item.key, result)
            )

    def _everywhere(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
        error: PoolError,
    ) -> list[list[list[int]]]:
        """The same code for every fragment of every buffer; one where the shapes do not say how many there are."""
        number = self.failed("get_into_ranges", error)
        results = []
        for i, _ in enumerate(buffer_ptrs):
            keys: Sequence[str] = all_keys[i] if i < len(all_keys) else ("",)
            sizes = all_sizes[i] if i < len(all_sizes) else ()
            results.append([[number] * (len(sizes[j]) if j < len(sizes) else 1) for j, _ in enumerate(keys)])
        return results


def fragment_item(attachment: Attachment, key: str, pointer: int, to: int, start: int, size: int) -> RangeItem:
    """What the pool is asked for. Raises `InvalidArgument` (memory, negative numbers), `KeyNotFound`."""
    raw = key_to_find(key)
    length, offset = integer("size", size), integer("offset", to)
    if length < 0 or offset < 0:
        raise InvalidArgument(f"a fragment of {length} bytes at {offset}: neither may be negative")
    target = attachment.pointers.find(integer("buffer_ptr", pointer) + offset, length)
    return RangeItem(raw, integer("offset", start), length, target)
