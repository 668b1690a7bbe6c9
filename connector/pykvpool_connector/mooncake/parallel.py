"""Tensors in parts: the tensor-parallel forms (`..._with_tp`) and the general ones (`..._with_parallelism`).

Writers store shards under keys made by `shards`; readers take the shard they need, or put the whole together again. A
shard that was stored for another number of ranks is not passed off as the wanted one: the wanted part is cut from the
whole, or there is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from pykvpool.errors import InvalidArgument, PoolError
from pykvpool.memory.copying import copy_pieces
from pykvpool_connector.mooncake.calls import OK, code, per_key
from pykvpool_connector.mooncake.checks import check_equal, check_key, check_keys, integer, key_to_store
from pykvpool_connector.mooncake.copying_puts import PutForm
from pykvpool_connector.mooncake.puts import Value, put_all, upsert_all
from pykvpool_connector.mooncake.replicate import ReplicateConfig
from pykvpool_connector.mooncake.shards import (
    ReadTarget,
    Shard,
    TensorParallelism,
    checked_axes,
    part_of,
    partition_axes,
    shard_key,
    tp_axis,
)
from pykvpool_connector.mooncake.tensor_format import Axis, TensorHeader
from pykvpool_connector.mooncake.tensors import Tensors, stored_at
from pykvpool_connector.mooncake.torch_tensors import Tensor, check_tensor, from_memory, stored_form, torch


class ShardStore(Tensors):
    """The two ways through which all forms go: `_put_shards` and `_stored`."""

    def _put_shards(
        self,
        what: str,
        form: PutForm,
        keys: Sequence[str],
        shards_of: Callable[[int], list[Shard]],
        config: ReplicateConfig | None,
    ) -> list[int]:
        """Put what ``shards_of(position in keys)`` gives; a code per position."""
        torch()
        owners, names, alive = [], [], []
        values: list[Value | PoolError] = []
        for position, key in enumerate(keys):
            check_key(key)
            try:
                for shard in shards_of(position):
                    pieces, dense = stored_form(shard.tensor, shard.axes, shard.whole_shape)
                    alive.append(dense)
                    values.append(Value(key_to_store(shard.key), pieces))
                    names.append(shard.key)
                    owners.append(position)
            except PoolError as error:
                values.append(error)
                names.append(key)
                owners.append(position)
        codes = [OK] * len(keys)
        for owner, number in zip(owners, self._put_values(what, form, names, values, config), strict=True):
            codes[owner] = codes[owner] or number
        return codes

    def _shard_or_whole(self, what: str, key: str, axes: tuple[Axis, ...]) -> Tensor | None:
        """The shard that `axes` name (none: the whole), as stored, or cut from the whole; None: not to be had."""
        [stored] = self._stored(what, [shard_key(key, axes)])
        if stored is not None and stored[0].axes == axes:
            return stored[1]
        splitting = tp_axis(axes)
        whole = self._whole(what, key, axes)
        if whole is None or splitting is None:
            return whole
        try:
            begin, length = part_of(tuple(whole.shape), splitting)
        except PoolError as error:
            self.failed(f"{what} {key!r:.80}", error)
            return None
        return whole.narrow(splitting.split_dim, begin, length).contiguous()

    def _whole(self, what: str, key: str, axes: tuple[Axis, ...]) -> Tensor | None:
        """The whole tensor: stored so, or joined from its tensor-parallel shards."""
        others = tuple(axis for axis in axes if axis.kind != "tp")
        wanted = tp_axis(axes)
        candidates = [shard_key(key, others)]
        if not others:
            candidates.append(f"{key}_tp_0")
        elif wanted is not None:
            candidates.append(shard_key(key, tuple(_at_rank(axis, 0) for axis in axes)))
        for stored in self._stored(what, candidates):
            if stored is None:
                continue
            first = tp_axis(stored[0].axes)
            if first is None:
                return stored[1]
            names = [
                shard_key(key, tuple(_at_rank(axis, rank) for axis in stored[0].axes)) for rank in range(first.size)
            ]
            shards = [shard[1] for shard in self._stored(what, names) if shard is not None]
            if len(shards) == first.size:
                return torch().cat(shards, dim=first.split_dim)
        return None

    def _stored(self, what: str, keys: Sequence[str]) -> list[tuple[TensorHeader, Tensor] | None]:
        found: list[tuple[TensorHeader, Tensor] | None] = []
        for key, handle in zip(keys, self._handles(what, keys), strict=True):
            try:
                found.append(None if handle is None else from_memory(memoryview(handle)))
            except PoolError as error:
                self.failed(f"{what} {key!r:.80}", error)
                found.append(None)
        return found

    def _into(self, what: str, tensor: Tensor | None, pointer: int, size: int) -> Tensor | None:
        """Write a tensor's stored form into registered memory; a tensor over that memory."""
        if tensor is None:
            return None
        try:
            pieces, _ = stored_form(tensor)
            target = self._open.pointers.find(pointer, integer("size", size))
            needed = sum(piece.nbytes for piece in pieces)
            if needed > target.nbytes:
                raise InvalidArgument(f"a buffer of {target.nbytes} bytes for a tensor of {needed}")
            copy_pieces([target[:needed]], pieces)
            return from_memory(target[:needed])[1]
        except PoolError as error:
            self.failed(what, error)
            return None


def _at_rank(axis: Axis, rank: int) -> Axis:
    return dataclasses.replace(axis, rank=rank) if axis.kind == "tp" else axis


class TensorParallelTensors(ShardStore):
    """The ``..._with_tp`` forms. A put splits the whole tensor and stores every shard, whatever `tp_rank` says."""

    @code
    def put_tensor_with_tp(
        self, key: str, tensor: Tensor, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Store a tensor as `tp_size` shards (``key_tp_0``, ...), equal parts along `split_dim`."""
        return self._put_split("put_tensor_with_tp", [key], [tensor], tp_size, split_dim)[0]

    @code
    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: Tensor,
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """`put_tensor_with_tp` with a config."""
        return self._put_split("pub_tensor_with_tp", [key], [tensor], tp_size, split_dim, config)[0]

    @per_key
    def batch_put_tensor_with_tp(
        self, base_keys: list[str], tensors_list: list[Tensor], tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> list[int]:
        """`put_tensor_with_tp` for many; a code for each."""
        return self._put_split("batch_put_tensor_with_tp", base_keys, tensors_list, tp_size, split_dim)

    @per_key
    def batch_pub_tensor_with_tp(
        self,
        base_keys: list[str],
        tensors_list: list[Tensor],
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`batch_put_tensor_with_tp` with a config."""
        return self._put_split("batch_pub_tensor_with_tp", base_keys, tensors_list, tp_size, split_dim, config)

    @code
    def put_tensor_with_tp_from(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """`put_tensor_with_tp` of the whole tensor whose stored form lies in registered memory."""
        _, tensor = from_memory(stored_at(self._open, buffer_ptr, size))
        return self._put_split("put_tensor_with_tp_from", [key], [tensor], tp_size, split_dim)[0]

    @per_key
    def batch_put_tensor_with_tp_from(
        self,
        base_keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`put_tensor_with_tp_from` for many; a code for each."""
        check_equal("buffer_ptrs and sizes", base_keys, buffer_ptrs, sizes)
        return [
            self.put_tensor_with_tp_from(key, pointer, size, tp_rank, tp_size, split_dim)
            for key, pointer, size in zip(base_keys, buffer_ptrs, sizes, strict=True)
        ]

    def get_tensor_with_tp(self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Tensor | None:
        """The shard of `tp_rank`; None where there is none that was stored for `tp_size` ranks."""
        return self.batch_get_tensor_with_tp([key], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp(self, base_keys: list[str], tp_rank: int = 0, tp_size: int = 1) -> list[Tensor | None]:
        """`get_tensor_with_tp` for many."""
        names = [_tp_key(key, tp_rank, tp_size) for key in check_keys(base_keys)]
        return [_of_size(stored, tp_size) for stored in self._stored("batch_get_tensor_with_tp", names)]

    def get_tensor_with_tp_into(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Tensor | None:
        """`get_tensor_with_tp` into registered memory."""
        return self.batch_get_tensor_with_tp_into([key], [buffer_ptr], [size], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp_into(
        self, base_keys: list[str], buffer_ptrs: list[int], sizes: list[int], tp_rank: int = 0, tp_size: int = 1
    ) -> list[Tensor | None]:
        """`get_tensor_with_tp_into` for many."""
        names = [_tp_key(key, tp_rank, tp_size) for key in check_keys(base_keys)]
        return self._get_tensors_into("batch_get_tensor_with_tp_into", names, buffer_ptrs, sizes)

    def _put_split(
        self,
        what: str,
        keys: Sequence[str],
        tensors: Sequence[Tensor],
        tp_size: int,
        split_dim: int,
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        check_equal("tensors", keys, tensors)

        def shards_of(position: int) -> list[Shard]:
            key, tensor = keys[position], check_tensor(tensors[position])
            if tp_size <= 1:
                return [Shard(key, tensor)]
            whole = tuple(tensor.shape)
            shards = []
            for rank in range(tp_size):
                axis = Axis("tp", rank, tp_size, split_dim)
                part = tensor.narrow(split_dim, *part_of(whole, axis))
                shards.append(Shard(shard_key(key, (axis,)), part, (axis,), whole))
            return shards

        return self._put_shards(what, put_all, keys, shards_of, config)


def _tp_key(key: str, rank: int, size: int) -> str:
    return key if size <= 1 else f"{key}_tp_{integer('tp_rank', rank)}"


def _of_size(stored: tuple[TensorHeader, Tensor] | None, size: int) -> Tensor | None:
    """A shard that was stored for another number of ranks holds another part of the tensor than the caller thinks."""
    if stored is None:
        return None
    axis = tp_axis(stored[0].axes)
    return stored[1] if (axis.size if axis is not None else 1) == max(1, size) else None


class ParallelTensors(TensorParallelTensors):
    """The ``..._with_parallelism`` forms. Part of `MooncakeDistributedStore`."""

    @code
    def put_tensor_with_parallelism(
        self,
        key: str,
        tensor: Tensor,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: object = None,
    ) -> int:
        """Store a whole tensor, or the shard that `parallelism` names.

        With one tp axis `tensor` is that shard; with more axes, and with `writer_partition` (rank, size, split_dim), it
        is the whole tensor and the shard is cut from it. Only one of the two may be given.
        """
        return self._put_one("put_tensor_with_parallelism", put_all, key, tensor, parallelism, config, writer_partition)

    @code
    def upsert_tensor_with_parallelism(
        self,
        key: str,
        tensor: Tensor,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: object = None,
    ) -> int:
        """`put_tensor_with_parallelism` in place of what is there."""
        what = "upsert_tensor_with_parallelism"
        return self._put_one(what, upsert_all, key, tensor, parallelism, config, writer_partition)

    @per_key
    def batch_put_tensor_with_parallelism(
        self,
        keys: list[str],
        tensors_list: list[Tensor],
        parallelisms: list[TensorParallelism | None] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: list[object] | None = None,
    ) -> list[int]:
        """`put_tensor_with_parallelism` for many; a code for each."""
        what = "batch_put_tensor_with_parallelism"
        return self._put_many(what, put_all, keys, tensors_list, parallelisms, config, writer_partitions)

    @per_key
    def batch_upsert_tensor_with_parallelism(
        self,
        keys: list[str],
        tensors_list: list[Tensor],
        parallelisms: list[TensorParallelism | None] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: list[object] | None = None,
    ) -> list[int]:
        """`upsert_tensor_with_parallelism` for many; a code for each."""
        what = "batch_upsert_tensor_with_parallelism"
        return self._put_many(what, upsert_all, keys, tensors_list, parallelisms, config, writer_partitions)

    @code
    def put_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: object = None,
    ) -> int:
        """`put_tensor_with_parallelism` of a tensor whose stored form lies in registered memory."""
        _, tensor = from_memory(stored_at(self._open, buffer_ptr, size))
        what = "put_tensor_with_parallelism_from"
        return self._put_one(what, put_all, key, tensor, parallelism, config, writer_partition)

    @code
    def upsert_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: object = None,
    ) -> int:
        """`put_tensor_with_parallelism_from` in place of what is there."""
        _, tensor = from_memory(stored_at(self._open, buffer_ptr, size))
        what = "upsert_tensor_with_parallelism_from"
        return self._put_one(what, upsert_all, key, tensor, parallelism, config, writer_partition)

    @per_key
    def batch_put_tensor_with_parallelism_from(
        self,
        keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        parallelisms: list[TensorParallelism | None] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: list[object] | None = None,
    ) -> list[int]:
        """`put_tensor_with_parallelism_from` for many; a code for each."""
        tensors = self._all_from(keys, buffer_ptrs, sizes)
        what = "batch_put_tensor_with_parallelism_from"
        return self._put_many(what, put_all, keys, tensors, parallelisms, config, writer_partitions)

    @per_key
    def batch_upsert_tensor_with_parallelism_from(
        self,
        keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        parallelisms: list[TensorParallelism | None] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: list[object] | None = None,
    ) -> list[int]:
        """`upsert_tensor_with_parallelism_from` for many; a code for each."""
        tensors = self._all_from(keys, buffer_ptrs, sizes)
        what = "batch_upsert_tensor_with_parallelism_from"
        return self._put_many(what, upsert_all, keys, tensors, parallelisms, config, writer_partitions)

    def get_tensor_with_parallelism(self, key: str, target: ReadTarget | None = None) -> Tensor | None:
        """What `target` says: as stored under `key` (None), the shard it names, or the whole; None: not there."""
        check_key(key)
        return self._read_target("get_tensor_with_parallelism", key, target)

    def batch_get_tensor_with_parallelism(
        self, keys: list[str], targets: list[ReadTarget | None] | None = None
    ) -> list[Tensor | None]:
        """`get_tensor_with_parallelism` for many."""
        wanted = targets or [None] * len(check_keys(keys))
        check_equal("targets", keys, wanted)
        what = "batch_get_tensor_with_parallelism"
        return [self._read_target(what, key, target) for key, target in zip(keys, wanted, strict=True)]

    def get_tensor_with_parallelism_into(
        self, key: str, buffer_ptr: int, size: int, target: ReadTarget | None = None
    ) -> Tensor | None:
        """`get_tensor_with_parallelism` into registered memory. As stored: without a copy of its own."""
        check_key(key)
        what = "get_tensor_with_parallelism_into"
        if target is None or (target.mode == "as_stored" and target.parallelism is None):
            return self._get_tensors_into(what, [key], [buffer_ptr], [size])[0]
        return self._into(what, self._read_target(what, key, target), buffer_ptr, size)

    def batch_get_tensor_with_parallelism_into(
        self,
        keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        targets: list[ReadTarget | None] | None = None,
    ) -> list[Tensor | None]:
        """`get_tensor_with_parallelism_into` for many."""
        wanted = targets or [None] * len(check_keys(keys))
        check_equal("buffer_ptrs, sizes and targets", keys, buffer_ptrs, sizes, wanted)
        return [
            self.get_tensor_with_parallelism_into(key, pointer, size, target)
            for key, pointer, size, target in zip(keys, buffer_ptrs, sizes, wanted, strict=True)
        ]

    # -- parts -----------------------------------------------------------------------------------------------------

    def _put_one(
        self,
        what: str,
        form: PutForm,
        key: str,
        tensor: Tensor,
        parallelism: TensorParallelism | None,
        config: ReplicateConfig | None,
        partition: object,
    ) -> int:
        return self._put_many(what, form, [key], [tensor], [parallelism], config, [partition])[0]

    def _put_many(
        self,
        what: str,
        form: PutForm,
        keys: Sequence[str],
        tensors: Sequence[Tensor | PoolError],
        parallelisms: Sequence[TensorParallelism | None] | None,
        config: ReplicateConfig | None,
        partitions: Sequence[object] | None,
    ) -> list[int]:
        shapes = parallelisms or [None] * len(keys)
        parts = partitions or [None] * len(keys)
        check_equal("tensors, parallelisms and writer_partitions", keys, tensors, shapes, parts)

        def shards_of(position: int) -> list[Shard]:
            tensor = tensors[position]
            if isinstance(tensor, PoolError):
                raise tensor
            return [_shard(keys[position], check_tensor(tensor), shapes[position], parts[position])]

        return self._put_shards(what, form, keys, shards_of, config)

    def _all_from(self, keys: Sequence[str], pointers: Sequence[int], sizes: Sequence[int]) -> list[Tensor | PoolError]:
        check_equal("buffer_ptrs and sizes", keys, pointers, sizes)
        tensors: list[Tensor | PoolError] = []
        for pointer, size in zip(pointers, sizes, strict=True):
            try:
                tensors.append(from_memory(stored_at(self._open, pointer, size))[1])
            except PoolError as error:
                tensors.append(error)
        return tensors

    def _read_target(self, what: str, key: str, target: ReadTarget | None) -> Tensor | None:
        try:
            wanted = target or ReadTarget()
            axes = () if wanted.parallelism is None else checked_axes(wanted.parallelism)
            if wanted.mode == "as_stored":
                [stored] = self._stored(what, [shard_key(key, axes)])
                return None if stored is None else stored[1]
            if wanted.mode == "shard":
                if not axes:
                    raise InvalidArgument("a ReadTarget of mode 'shard' needs its parallelism")
                return self._shard_or_whole(what, key, axes)
            if wanted.mode == "full":
                return self._whole(what, key, axes)
            raise InvalidArgument(f"mode {wanted.mode!r}: 'as_stored', 'shard' or 'full' is allowed")
        except PoolError as error:
            self.failed(f"{what} {key!r:.80}", error)
            return None


def _shard(key: str, tensor: Tensor, parallelism: TensorParallelism | None, partition: object) -> Shard:
    """What is stored, and under which key. Raises `InvalidArgument`."""
    if parallelism is not None and partition is not None:
        raise InvalidArgument("parallelism and writer_partition say the same thing: give one of them")
    if parallelism is None and partition is None:
        return Shard(key, tensor)
    axes = checked_axes(parallelism) if parallelism is not None else partition_axes(partition)
    splitting = tp_axis(axes)
    name, shape = shard_key(key, axes), tuple(tensor.shape)
    if splitting is None:
        return Shard(name, tensor, axes)
    dimension = splitting.split_dim
    if len(axes) == 1 and partition is None:
        if dimension is None or not 0 <= dimension < len(shape):
            raise InvalidArgument(f"split_dim {dimension} of a tensor with {len(shape)} dimensions")
        whole = tuple(n * splitting.size if i == dimension else n for i, n in enumerate(shape))
        return Shard(name, tensor, axes, whole)
    return Shard(name, tensor.narrow(dimension, *part_of(shape, splitting)), axes, shape)
