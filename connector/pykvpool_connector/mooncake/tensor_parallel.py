"""The tensor-parallel forms (``..._with_tp``): a whole tensor goes in, every rank takes its equal part out."""

from __future__ import annotations

from collections.abc import Sequence

from pykvpool_connector.mooncake.calls import code, per_key
from pykvpool_connector.mooncake.checks import check_equal, check_keys, integer
from pykvpool_connector.mooncake.puts import put_all
from pykvpool_connector.mooncake.replicate import ReplicateConfig
from pykvpool_connector.mooncake.shard_store import ShardStore
from pykvpool_connector.mooncake.shards import Shard, part_of, shard_key, tp_axis
from pykvpool_connector.mooncake.tensor_format import Axis, TensorHeader
from pykvpool_connector.mooncake.tensors import stored_at
from pykvpool_connector.mooncake.torch_tensors import Tensor, check_tensor, from_memory


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
