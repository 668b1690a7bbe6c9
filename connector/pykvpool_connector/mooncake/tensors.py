"""Tensors as objects: put_tensor, get_tensor, their batch, upsert, zero-copy and `pub` (with a config) forms.

A tensor goes from its own memory with a header in front, gathered by the fabric; it comes back as a tensor over the
memory that the fabric filled. Without torch every call here has the code for "not supported", or None.
"""

from __future__ import annotations

from collections.abc import Sequence

from pykvpool.errors import InvalidArgument, PoolError
from pykvpool_connector.mooncake.attachment import Attachment
from pykvpool_connector.mooncake.calls import code, per_key
from pykvpool_connector.mooncake.checks import check_equal, check_key, check_keys, integer, key_to_find, key_to_store
from pykvpool_connector.mooncake.copying_puts import PutForm
from pykvpool_connector.mooncake.gets import Gets
from pykvpool_connector.mooncake.puts import Value, put_all, upsert_all
from pykvpool_connector.mooncake.replicate import ReplicateConfig
from pykvpool_connector.mooncake.tensor_format import parse
from pykvpool_connector.mooncake.torch_tensors import Tensor, from_memory, stored_form, torch


class Tensors(Gets):
    """Part of `MooncakeDistributedStore`."""

    # -- put -------------------------------------------------------------------------------------------------------

    @code
    def put_tensor(self, key: str, tensor: Tensor) -> int:
        """Store a tensor: 0 or a code."""
        return self._put_tensors("put_tensor", put_all, [key], [tensor])[0]

    @code
    def pub_tensor(self, key: str, tensor: Tensor, config: ReplicateConfig | None = None) -> int:
        """`put_tensor` with a config."""
        return self._put_tensors("pub_tensor", put_all, [key], [tensor], config)[0]

    @code
    def upsert_tensor(self, key: str, tensor: Tensor) -> int:
        """Store a tensor in place of what is there."""
        return self._put_tensors("upsert_tensor", upsert_all, [key], [tensor])[0]

    @code
    def upsert_pub_tensor(self, key: str, tensor: Tensor, config: ReplicateConfig | None = None) -> int:
        """`upsert_tensor` with a config."""
        return self._put_tensors("upsert_pub_tensor", upsert_all, [key], [tensor], config)[0]

    @per_key
    def batch_put_tensor(self, keys: list[str], tensors_list: list[Tensor]) -> list[int]:
        """Store many tensors; a code for each."""
        return self._put_tensors("batch_put_tensor", put_all, keys, tensors_list)

    @per_key
    def batch_pub_tensor(
        self, keys: list[str], tensors_list: list[Tensor], config: ReplicateConfig | None = None
    ) -> list[int]:
        """`batch_put_tensor` with a config."""
        return self._put_tensors("batch_pub_tensor", put_all, keys, tensors_list, config)

    @per_key
    def batch_upsert_tensor(self, keys: list[str], tensors_list: list[Tensor]) -> list[int]:
        """Store many tensors, each in place of what is there."""
        return self._put_tensors("batch_upsert_tensor", upsert_all, keys, tensors_list)

    @per_key
    def batch_upsert_pub_tensor(
        self, keys: list[str], tensors_list: list[Tensor], config: ReplicateConfig | None = None
    ) -> list[int]:
        """`batch_upsert_tensor` with a config."""
        return self._put_tensors("batch_upsert_pub_tensor", upsert_all, keys, tensors_list, config)

    # -- put from registered memory that holds the stored form -----------------------------------------------------

    @code
    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Store the tensor whose stored form (header and elements, exactly `size` bytes) lies in registered memory."""
        return self._put_stored("put_tensor_from", put_all, [key], [buffer_ptr], [size])[0]

    @code
    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """`put_tensor_from` in place of what is there."""
        return self._put_stored("upsert_tensor_from", upsert_all, [key], [buffer_ptr], [size])[0]

    @per_key
    def batch_put_tensor_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        """`put_tensor_from` for many; a code for each."""
        return self._put_stored("batch_put_tensor_from", put_all, keys, buffer_ptrs, sizes)

    @per_key
    def batch_upsert_tensor_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        """`upsert_tensor_from` for many; a code for each."""
        return self._put_stored("batch_upsert_tensor_from", upsert_all, keys, buffer_ptrs, sizes)

    # -- get -------------------------------------------------------------------------------------------------------

    def get_tensor(self, key: str) -> Tensor | None:
        """The tensor; None where there is none, or no tensor under this key."""
        check_key(key)
        return self._get_tensors("get_tensor", [key])[0]

    def batch_get_tensor(self, keys: list[str]) -> list[Tensor | None]:
        """The tensors in order, None for each that cannot be had."""
        return self._get_tensors("batch_get_tensor", check_keys(keys))

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Tensor | None:
        """Read the stored form into registered memory; a tensor over that memory, or None."""
        check_key(key)
        return self._get_tensors_into("get_tensor_into", [key], [buffer_ptr], [size])[0]

    def batch_get_tensor_into(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[Tensor | None]:
        """`get_tensor_into` for many; None for each that cannot be had."""
        return self._get_tensors_into("batch_get_tensor_into", check_keys(keys), buffer_ptrs, sizes)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _put_tensors(
        self,
        what: str,
        form: PutForm,
        keys: Sequence[str],
        tensors: Sequence[Tensor],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        check_keys(list(keys))
        check_equal("tensors", keys, tensors)
        torch()
        alive, values = [], list[Value | PoolError]()
        for key, tensor in zip(keys, tensors, strict=True):
            try:
                pieces, dense = stored_form(tensor)
                values.append(Value(key_to_store(key), pieces))
                alive.append(dense)
            except PoolError as error:
                values.append(error)
        return self._put_values(what, form, keys, values, config)

    def _put_values(
        self,
        what: str,
        form: PutForm,
        keys: Sequence[str],
        values: Sequence[Value | PoolError],
        config: ReplicateConfig | None,
    ) -> list[int]:
        wish = (config or ReplicateConfig()).wish(len(keys), self._open.own_node)
        return self._codes(what, keys, self._run(lambda attachment: form(attachment, values, wish)))

    def _put_stored(
        self, what: str, form: PutForm, keys: Sequence[str], pointers: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        check_keys(list(keys))
        check_equal("buffer_ptrs and sizes", keys, pointers, sizes)
        attachment = self._open
        values: list[Value | PoolError] = []
        for key, pointer, size in zip(keys, pointers, sizes, strict=True):
            try:
                values.append(Value(key_to_store(key), [stored_at(attachment, pointer, size)]))
            except PoolError as error:
                values.append(error)
        return self._put_values(what, form, keys, values, None)

    def _get_tensors(self, what: str, keys: Sequence[str]) -> list[Tensor | None]:
        tensors: list[Tensor | None] = []
        for key, handle in zip(keys, self._handles(what, keys), strict=True):
            tensors.append(None if handle is None else self._tensor(what, key, memoryview(handle)))
        return tensors

    def _tensor(self, what: str, key: str, memory: memoryview) -> Tensor | None:
        try:
            return from_memory(memory)[1]
        except PoolError as error:
            self.failed(f"{what} {key!r:.80}", error)
            return None

    def _get_tensors_into(
        self, what: str, keys: Sequence[str], pointers: Sequence[int], sizes: Sequence[int]
    ) -> list[Tensor | None]:
        tensors: list[Tensor | None] = [None] * len(keys)
        positions, raw, targets = [], [], []
        try:
            check_equal("buffer_ptrs and sizes", keys, pointers, sizes)
            torch()
            attachment = self._open
            for position, (key, pointer, size) in enumerate(zip(keys, pointers, sizes, strict=True)):
                try:
                    target = attachment.pointers.find(pointer, integer("size", size))
                    raw.append(key_to_find(key))
                except PoolError as error:
                    self.failed(f"{what} {key!r:.80}", error)
                    continue
                positions.append(position)
                targets.append(target)
            found = self._read(lambda client: client.get_into_batch(raw, targets))
        except PoolError as error:
            self.failed(what, error)
            return tensors
        for position, target, result in zip(positions, targets, found, strict=True):
            if isinstance(result, PoolError):
                self.failed(f"{what} {keys[position]!r:.80}", result)
            else:
                tensors[position] = self._tensor(what, keys[position], target[: result.size_bytes])
        return tensors


def stored_at(attachment: Attachment, pointer: object, size: object) -> memoryview:
    """The stored form in registered memory. Raises `InvalidArgument` where it is none, or not exactly that long."""
    memory = attachment.pointers.find(pointer, size)
    header = parse(memory)
    if header.object_bytes != memory.nbytes:
        raise InvalidArgument(f"the tensor in this buffer has {header.object_bytes} bytes, not {memory.nbytes}")
    return memory
