"""get, get_batch, get_buffer, batch_get_buffer: the store makes the memory, the fabric fills it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pykvpool.client import GetResult
from pykvpool.errors import PoolError
from pykvpool_connector.mooncake.base import StoreBase
from pykvpool_connector.mooncake.calls import value
from pykvpool_connector.mooncake.checks import check_key, check_keys, key_to_find
from pykvpool_connector.mooncake.handles import BufferHandle


class Gets(StoreBase):
    """Part of `MooncakeDistributedStore`."""

    @value(bytes)
    def get(self, key: str) -> bytes:
        """The object, or ``b""`` where there is none or it cannot be had (`last_error` says which)."""
        check_key(key)
        raw = key_to_find(key)
        [found] = self._read(lambda client: client.get_batch([raw]))
        if isinstance(found, PoolError):
            raise found
        return found

    def get_batch(self, keys: list[str]) -> list[bytes]:
        """The objects in order, ``b""`` for each that cannot be had."""
        values = [b""] * len(check_keys(keys))

        def keep(positions: Sequence[int], found: Sequence[bytes | PoolError]) -> None:
            for position, got in zip(positions, found, strict=True):
                if isinstance(got, PoolError):
                    self.failed(f"get_batch {keys[position]!r:.80}", got)
                else:
                    values[position] = got

        try:
            positions, raw = self._findable(keys)
            keep(
                positions,
                self._read(lambda client: client.get_batch(raw)),
            )
        except PoolError as error:
            self.failed("get_batch", error)
        return values

    def get_buffer(self, key: str) -> BufferHandle | None:
        """The object in memory of its own that speaks the buffer protocol; None where it cannot be had."""
        check_key(key)
        [handle] = self._handles("get_buffer", [key])
        return handle

    def batch_get_buffer(self, keys: list[str]) -> list[BufferHandle | None]:
        """The objects in order, None for each that cannot be had."""
        return self._handles("batch_get_buffer", check_keys(keys))

    def _handles(self, what: str, keys: Sequence[str]) -> list[BufferHandle | None]:
        handles: list[BufferHandle | None] = [None] * len(keys)
        try:
            positions, raw = self._findable(keys)
            made: dict[int, BufferHandle] = {}

            def allocate(position: int, size_bytes: int) -> BufferHandle:
                made[position] = BufferHandle.of_size(size_bytes)
                return made[position]

            found = self._get_new(raw, allocate)
        except PoolError as error:
            self.failed(what, error)
            return handles
        for index, (position, result) in enumerate(zip(positions, found, strict=True)):
            if isinstance(result, PoolError):
                self.failed(f"{what} {keys[position]!r:.80}", result)
            else:
                handles[position] = made[index]
        return handles

    def _get_new(self, keys: Sequence[bytes], allocate: Callable[[int, int], object]) -> list[GetResult | PoolError]:
        """Read objects into what `allocate` gives for (position in keys, size in bytes)."""
        return self._read(lambda client: client.get_into_new(keys, allocate))

    def _findable(self, keys: Sequence[str]) -> tuple[list[int], list[bytes]]:
        """Positions and binary forms of the keys that an object can have at all."""
        positions, raw = [], []
        for position, key in enumerate(keys):
            try:
                raw.append(key_to_find(key))
            except PoolError:
                continue  # such a key is a miss, which is what its place says already
            positions.append(position)
        return positions, raw
