"""Reads vLLM's cache groups: which there are, how a prefix of theirs is restored, what shapes their bytes.

vLLM describes a group by an object whose class says what kind it is. The classes are known here by name, so that this
reads equally well from stand-ins and without vLLM. Only kinds whose blocks are a function of the tokens before their
end can be restored from a pool; every other is refused by its name when the engine starts, not when a hit goes wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pykvpool.errors import NotSupported
from pykvpool.hashing import GroupLayout

#: Class of a spec -> (what of a prefix is needed, its kind in a fingerprint).
_KINDS = {
    "FullAttentionSpec": ("full", "full"),
    "MLAAttentionSpec": ("full", "mla"),
    "SlidingWindowSpec": ("window", "sliding_window"),
    "SlidingWindowMLASpec": ("window", "sliding_window_mla"),
}
#: What to tell users of the kinds that people meet.
_REASONS = {
    "MambaSpec": "Mamba layers keep a running state, which is not cut into blocks of tokens",
    "CrossAttentionSpec": "cross-attention caches what an encoder saw, which no token of the prompt names",
    "EncoderOnlyAttentionSpec": "encoder-only attention looks both ways, so a prefix says nothing about its blocks",
    "ChunkedLocalAttentionSpec": "chunked local attention is not supported yet",
}
#: Stands in for the names of layers where they are cut over pipeline ranks and no side sees them all.
_ALL_LAYERS = "every layer of the group"


@dataclass(frozen=True, slots=True)
class GroupRule:
    """How blocks of one cache group are keyed, and what of a prefix has to be there for a hit."""

    #: Number of the group in vLLM's `KVCacheConfig`.
    group: int
    #: "full": the whole prefix is needed (attention to all tokens, MLA). "window": only its end.
    kind: str
    #: Tokens that one block stands for, over all decode-context ranks.
    block_tokens: int
    #: Hashes of a request that one block of this group spans; it is keyed by the last of them.
    hash_stride: int
    #: Tokens at the end of a prefix, the next one included, that a hit needs: blocks cover ``window_tokens - 1`` of
    #: the prefix. 0 for "full".
    window_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CacheGroups:
    """All groups of an engine."""

    rules: tuple[GroupRule, ...]
    layouts: tuple[GroupLayout, ...]
    hash_block_tokens: int
    #: Different parts that the tensor-parallel ranks hold; fewer than ranks where some hold the same bytes.
    kv_shards: int


def layer_specs(spec: Any) -> list[Any]:
    """The specs that a group's spec covers: one for each layer, or one for all of them."""
    inner = getattr(spec, "kv_cache_specs", None)
    return [spec] if inner is None else list(inner.values())


def read_groups(
    kv_cache_config: Any, *, tensor_size: int, pipeline_size: int, context_size: int, total_kv_heads: int
) -> CacheGroups:
    """The groups of vLLM's `KVCacheConfig`, equal on the scheduler's and on every worker's side.

    Args:
        kv_cache_config: of either side. They differ: pipeline ranks see their own layers only, and the scheduler sees
            one spec where a group's layers have several; nothing that differs goes into the result.
        tensor_size: tensor-parallel ranks.
        pipeline_size: pipeline ranks.
        context_size: decode-context ranks, over which tokens are spread.
        total_kv_heads: of the whole model.

    Raises:
        NotSupported: a group that cannot be restored from blocks, named with its layers.
    """
    groups = list(kv_cache_config.kv_cache_groups)
    if not groups:
        raise NotSupported("the model has no KV cache: there is nothing for a pool to keep")
    for number, group in enumerate(groups):
        _check(number, group)
    sizes = [_block_tokens(group.kv_cache_spec, context_size) for group in groups]
    hash_tokens = getattr(kv_cache_config, "hash_block_size", None) or math.gcd(*sizes)
    specs = [spec for group in groups for spec in layer_specs(group.kv_cache_spec)]
    kv_shards = tensor_size if context_size > 1 else tensor_size // _replicas(specs, tensor_size, total_kv_heads)
    rules: list[GroupRule] = []
    layouts: list[GroupLayout] = []
    for number, (group, tokens) in enumerate(zip(groups, sizes, strict=True)):
        if tokens % hash_tokens:
            raise NotSupported(
                f"cache group {number} has blocks of {tokens} tokens, hashes are of {hash_tokens} tokens"
            )
        spec = layer_specs(group.kv_cache_spec)[0]
        need, kind = _KINDS[type(spec).__name__]
        window = spec.sliding_window + getattr(spec, "extra_retained_tokens", 0) if need == "window" else 0
        rules.append(GroupRule(number, need, tokens, tokens // hash_tokens, window))
        if pipeline_size == 1:
            layouts.append(_layout(kind, group.layer_names, spec, tokens, kv_shards))
        else:
            layouts.append(_layout_of_pipeline(need, tokens, window, total_kv_heads))
    return CacheGroups(tuple(rules), tuple(layouts), hash_tokens, kv_shards)


def _check(number: int, group: Any) -> None:
    for spec in layer_specs(group.kv_cache_spec):
        kind = type(spec).__name__
        reason = _REASONS.get(kind, "its blocks are not known to be a function of the tokens they stand for")
        if kind in _KINDS:
            if spec.prefix_cacheable and getattr(group, "enable_kv_transfer", True):
                continue
            reason = "vLLM rebuilds it by itself and keeps it out of prefix caching"
        raise NotSupported(
            f"cache group {number} ({kind}, layers {_some(group.layer_names)}) cannot be kept in the pool: {reason}. "
            "Run this model without PyKVPoolStoreConnector",
            group=number,
            spec=kind,
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _block_tokens(spec: Any, context_size: int) -> int:
    return int(spec.block_size) * (context_size if getattr(spec, "dcp_sharded", False) else 1)


def _replicas(specs: Sequence[Any], tensor_size: int, total_kv_heads: int) -> int:
    """Consecutive tensor-parallel ranks that hold the same bytes in every group.

    MLA's latents are the same on all ranks. Where there are more ranks than KV heads, vLLM repeats each head on
    neighbouring ranks; that is relied on only where all layers agree on it.
    """
    found = tensor_size
    for spec in specs:
        if "MLA" in type(spec).__name__:
            continue
        repeated = spec.num_kv_heads == 1 and 0 < total_kv_heads < tensor_size and tensor_size % total_kv_heads == 0
        found = math.gcd(found, tensor_size // total_kv_heads if repeated else 1)
    return found


def _layout(kind: str, layers: Sequence[str], spec: Any, tokens: int, kv_shards: int) -> GroupLayout:
    types = (str(spec.dtype).removeprefix("torch."), _name(spec.kv_quant_mode), getattr(spec, "cache_dtype_str", None))
    return GroupLayout(
        kind=kind,
        layers=tuple(layers),
        block_tokens=tokens,
        kv_heads=spec.num_kv_heads * kv_shards,
        key_size=spec.head_size,
        value_size=spec.head_size_v,
        page_bytes=spec.unpadded_page_size_bytes,
        window_tokens=getattr(spec, "sliding_window", None) or 0,
        kv_dtype=" ".join(part for part in types if part),
    )


def _layout_of_pipeline(need: str, tokens: int, window: int, total_kv_heads: int) -> GroupLayout:
    """What all pipeline ranks know of a group. The rest follows from the model, which a fingerprint names too."""
    return GroupLayout(
        kind=need,
        layers=(_ALL_LAYERS,),
        block_tokens=tokens,
        kv_heads=total_kv_heads,
        key_size=0,
        value_size=0,
        page_bytes=1,
        window_tokens=window,
    )


def _name(mode: Any) -> str:
    return str(getattr(mode, "name", mode))
