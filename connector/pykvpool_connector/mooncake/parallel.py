"""The general forms of tensors in parts (``..._with_parallelism``): axes name a shard, a target says what is wanted."""

from __future__ import annotations

from collections.abc import Sequence

from pykvpool.errors import InvalidArgument, PoolError
from pykvpool_connector.mooncake.calls import code, per_key
from pykvpool_connector.mooncake.checks import check_equal, check_key, check_keys
from pykvpool_connector.mooncake.copying_puts import PutForm
from pykvpool_connector.mooncake.puts import put_all, upsert_all
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
from pykvpool_connector.mooncake.tensor_parallel import TensorParallelTensors
from pykvpool_connector.mooncake.tensors import stored_at
from pykvpool_connector.mooncake.torch_tensors import Tensor, check_tensor, from_memory


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
