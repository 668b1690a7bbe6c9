"""Shards of tensors on their way in and out: what the tensor-parallel and the general forms have in common.

Writers store shards under keys made by `shards`; readers take the shard they need, or put the whole together again. A
shard that was stored for another number of ranks is not passed off as the wanted one: the wanted part is cut from the
whole, or there is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from pykvpool.errors import InvalidArgument, PoolError
from pykvpool.memory.copying import copy_pieces
from pykvpool_connector.mooncake.calls import OK
from pykvpool_connector.mooncake.checks import check_key, integer, key_to_store
from pykvpool_connector.mooncake.copying_puts import PutForm
from pykvpool_connector.mooncake.puts import Value
from pykvpool_connector.mooncake.replicate import ReplicateConfig
from pykvpool_connector.mooncake.shards import Shard, part_of, shard_key, tp_axis
from pykvpool_connector.mooncake.tensor_format import Axis, TensorHeader
from pykvpool_connector.mooncake.tensors import Tensors
from pykvpool_connector.mooncake.torch_tensors import Tensor, from_memory, stored_form, torch


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
                key_to_store(key)  # a shard's longer key would pass where its base is none
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
