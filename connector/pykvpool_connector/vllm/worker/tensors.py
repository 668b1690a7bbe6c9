"""Where the bytes of a block lie in an engine's tensors.

vLLM gives each layer a view ``(blocks, heads, tokens, content)`` of a few large storages, in one of several memory
layouts; strides say where everything is. A block becomes an object layer by layer in the group's order, within a layer
in the order of heads and tokens that the identity names. So engines whose layouts differ in where blocks and layers lie
share objects, and only those whose bytes would come in another order do not. Here is computed, once, which runs of
memory make up a block, in that order; neighbours are joined, and in block-outermost layouts a whole block is one run.

Nothing here imports torch: a tensor is asked for its address, shape and strides only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from pykvpool.errors import InternalError, NotSupported, invariant
from pykvpool.host.port import Run
from pykvpool_connector.vllm.cache_groups import layer_specs
from pykvpool_connector.vllm.identity import Identity

#: Most runs one block may fall apart into. Beyond, moving it costs more than computing it: another layout is needed.
MAX_RUNS = 65_536


class Axis(NamedTuple):
    """One dimension of a view: how many, and how many bytes apart."""

    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Storage:
    """One allocation of the engine, whole: what a fabric registers."""

    base: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CacheTensors:
    """The cache of one rank."""

    #: Runs of a block by cache group.
    runs: tuple[tuple[Run, ...], ...]
    storages: tuple[Storage, ...]
    num_blocks: int
    #: "cpu", "cuda", ...
    device: str
    #: What keeps the addresses valid: the tensors, and a byte for groups without layers here.
    owners: tuple[object, ...]

    def holds(self, block_ids: Sequence[int]) -> bool:
        """All are blocks of this cache, none vLLM's null block 0."""
        return all(0 < block_id < self.num_blocks for block_id in block_ids)


def read_tensors(kv_cache_config: Any, kv_caches: Mapping[str, Any], identity: Identity) -> CacheTensors:
    """Where blocks lie, compared with what the identity says of them.

    Args:
        kv_cache_config: vLLM's `KVCacheConfig` of this worker.
        kv_caches: a tensor for each layer, as vLLM registers them.
        identity: made from the same configuration.

    Raises:
        NotSupported: a tensor that is not what the configuration says, named with its layer: its blocks would pass for
            others'.
    """
    num_blocks = int(kv_cache_config.num_blocks)
    order = identity.layout.memory_order
    found: list[tuple[Run, ...]] = []
    owners: list[object] = [kv_caches]
    for group in kv_cache_config.kv_cache_groups:
        specs = layer_specs(group.kv_cache_spec)
        by_layer = getattr(group.kv_cache_spec, "kv_cache_specs", None)
        runs: list[Run] = []
        for layer in group.layer_names:
            tensor = _tensor(kv_caches, layer)
            spec = specs[0] if by_layer is None else by_layer[layer]
            runs += _layer_runs(layer, tensor, spec, num_blocks, order)
        if not runs:  # a pipeline rank without a layer of this group: one byte says that it has nothing to add
            runs = [_marker(kv_caches, owners)]
        found.append(tuple(_joined(runs)))
        if len(found[-1]) > MAX_RUNS:
            raise NotSupported(
                f"a block falls apart into {len(found[-1])} pieces in this memory layout: choose another with "
                '"kv_layout" in kv_connector_extra_config'
            )
    devices = {str(tensor.device.type) for tensor in kv_caches.values()}
    if not devices <= {"cpu", "cuda"}:
        raise NotSupported(
            f"the engine's cache lies in memory of {', '.join(sorted(devices))}: the pool moves host memory and the "
            "memory of CUDA devices"
        )
    if len(devices) != 1:
        raise NotSupported(f"the engine's cache lies in several kinds of memory: {', '.join(sorted(devices))}")
    storages = {
        (tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()) for tensor in kv_caches.values()
    }
    return CacheTensors(
        tuple(found),
        tuple(Storage(base, size) for base, size in sorted(storages)),
        num_blocks,
        devices.pop(),
        tuple(owners),
    )


def _marker(kv_caches: Mapping[str, Any], owners: list[object]) -> Run:
    """One byte, in memory of the kind that all other blocks of this rank are in."""
    if any(tensor.device.type == "cuda" for tensor in kv_caches.values()):
        like = next(iter(kv_caches.values()))
        owners.append(like.new_zeros(1))
        return Run(int(owners[-1].data_ptr()), 0, 1)  # type: ignore[attr-defined]  # a tensor
    byte = ctypes.create_string_buffer(1)
    owners.append(byte)
    return Run(ctypes.addressof(byte), 0, 1)


def _tensor(kv_caches: Mapping[str, Any], layer: str) -> Any:
    tensor = kv_caches.get(layer)
    if tensor is None:
        raise NotSupported(f"vLLM registered no cache for layer {layer}, which its configuration names")
    if not hasattr(tensor, "data_ptr"):
        raise NotSupported(f"the cache of layer {layer} is no single tensor but a {type(tensor).__name__}")
    return tensor


def _layer_runs(layer: str, tensor: Any, spec: Any, num_blocks: int, order: str) -> list[Run]:
    """Runs of one layer's part of a block, in the order in which they become bytes of an object."""
    runs: list[Run] = []
    storage = tensor.untyped_storage()
    for base, axes in _parts(layer, tensor, num_blocks):
        block, rest = _split_blocks(layer, axes, num_blocks)
        ordered = _ordered(rest, order)
        for offset, length in _walk([*ordered, Axis(tensor.element_size(), 1)]):
            run = Run(base + offset, block.stride, length)
            last = run.base + (num_blocks - 1) * run.stride + length
            if not storage.data_ptr() <= run.base <= last <= storage.data_ptr() + storage.nbytes():
                raise InternalError(f"the blocks of layer {layer} reach beyond their storage")
            runs.append(run)
    size, expected = sum(run.length for run in runs), spec.unpadded_page_size_bytes
    if size != expected:
        raise NotSupported(
            f"a block of layer {layer} has {size} bytes in its tensor {tuple(tensor.shape)}, and {expected} by the "
            "configuration that names it: it cannot be shared under that name",
            layer=layer,
        )
    wanted, actual = str(spec.dtype).removeprefix("torch."), str(tensor.dtype).removeprefix("torch.")
    # Some backends view their cache as plain bytes: then the sizes have to do.
    if actual != wanted and actual not in ("uint8", "int8"):
        raise NotSupported(f"the cache of layer {layer} is of {actual}, by its configuration of {wanted}", layer=layer)
    return runs


def _parts(layer: str, tensor: Any, num_blocks: int) -> Iterator[tuple[int, list[Axis]]]:
    """A tensor as views of (blocks, heads, tokens, content): one, or two where keys and values lie apart."""
    unit = tensor.element_size()
    axes = [Axis(size, stride * unit) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    base = int(tensor.data_ptr())
    if len(axes) == 3:  # one latent for all heads
        yield base, [axes[0], Axis(1, 0), axes[1], axes[2]]
    elif len(axes) == 4:
        yield base, axes
    elif len(axes) == 5 and 2 in (axes[0].size, axes[1].size):
        split = 0 if axes[0].size == 2 and axes[1].size % num_blocks == 0 else 1
        both = axes.pop(split)
        # Backends of this form count tokens before heads.
        block, tokens, heads, content = axes
        for part in range(2):
            yield base + part * both.stride, [block, heads, tokens, content]
    else:
        raise NotSupported(f"the cache of layer {layer} has an unknown form: {tuple(tensor.shape)}", layer=layer)


def _split_blocks(layer: str, axes: list[Axis], num_blocks: int) -> tuple[Axis, list[Axis]]:
    """The axis of blocks, and (heads, pieces, tokens, content): attention kernels may cut blocks into pieces."""
    kernel, heads, tokens, content = axes
    pieces, rest = divmod(kernel.size, num_blocks)
    if rest or not pieces:
        raise NotSupported(f"the cache of layer {layer} has {kernel.size} blocks, not {num_blocks}", layer=layer)
    return Axis(num_blocks, kernel.stride * pieces), [heads, Axis(pieces, kernel.stride), tokens, content]


def _ordered(axes: list[Axis], order: str) -> list[Axis]:
    heads, pieces, tokens, content = axes
    if order == "NHC":
        return [pieces, tokens, heads, content]
    invariant(order == "HNC", f"an unknown order of heads and tokens: {order}")
    return [heads, pieces, tokens, content]


def _walk(axes: Sequence[Axis]) -> Iterator[tuple[int, int]]:
    """(offset, length) of every run of neighbouring bytes, in the order of the axes; the last axis counts bytes."""
    outer = [axis for axis in axes[:-1] if axis.size != 1]
    length = axes[-1].size
    while outer and outer[-1].stride == length:
        length *= outer.pop().size
    for at in product(*(range(axis.size) for axis in outer)):
        yield sum(index * axis.stride for index, axis in zip(at, outer, strict=True)), length


def _joined(runs: Sequence[Run]) -> Iterator[Run]:
    """The same bytes in the same order, with neighbours as one run."""
    current: Run | None = None
    for run in runs:
        if current is not None and run.stride == current.stride and run.base == current.base + current.length:
            current = Run(current.base, current.stride, current.length + run.length)
            continue
        if current is not None:
            yield current
        current = run
    if current is not None:
        yield current
