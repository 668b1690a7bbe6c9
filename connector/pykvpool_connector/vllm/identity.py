"""Who an engine is to the pool: from vLLM's configuration to scopes and keys, the same on every side.

The scheduler that looks up and the workers that save and load must build equal keys, or nothing is ever found, silently
(LMCache#1728). So both make an `Identity` from what both have, the configuration, and go through it for every scope and
key. Its fingerprint covers all that changes a block's bytes; what the workers' tensors really look like is compared
with it when they are registered. It does I/O only while it is made: the checkpoint is read once, adapters by a thread.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pykvpool.errors import ConfigError, NotSupported, invariant
from pykvpool.hashing import ALGORITHMS, DEFAULT_SEED, KeyBuilder, KVLayout, ParallelLayout, Rank
from pykvpool.model.keys import DEFAULT_NAMESPACE, Scope
from pykvpool_connector.vllm.adapters import AdapterDigests, LoraRequest
from pykvpool_connector.vllm.cache_groups import GroupRule, read_groups
from pykvpool_connector.vllm.checkpoint import checkpoint_digest

#: How a block becomes an object: parts of layers in the group's order, each in the cache's own order of heads and
#: tokens. Another way to pack needs another name.
PACKING = "layer by layer 1"
#: Builders kept for adapters; each is a few hundred bytes.
MAX_BUILDERS = 4096
#: The variable that vLLM seeds its block hashes with.
SEED_VARIABLE = "PYTHONHASHSEED"


@dataclass(frozen=True, slots=True)
class Stripe:
    """Which of the blocks that several ranks hold alike one of them stores."""

    index: int = 0
    count: int = 1

    def takes(self, key: bytes) -> bool:
        """Exactly one of the ranks takes a key, all as many as the others. Loads are not striped."""
        return self.count == 1 or int.from_bytes(key[-8:], "big") % self.count == self.index


class Identity:
    """Scopes and keys of one engine.

    Args:
        layout: what shapes the blocks' bytes, for the base model.
        groups: a rule for each cache group, in vLLM's order.
        namespace: keeps deployments apart.
        tensor_size: tensor-parallel ranks.
        world: ranks that report: tensor times pipeline.
    """

    def __init__(
        self,
        layout: KVLayout,
        groups: tuple[GroupRule, ...],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        tensor_size: int = 1,
        world: int = 1,
    ) -> None:
        invariant(len(groups) == len(layout.groups), "an identity has a rule for each group of its layout")
        self.groups = groups
        self.hash_block_tokens = layout.hash_block_tokens
        self.world = world
        self._base = KeyBuilder(layout, namespace, tensor_size)
        #: Builders by digest of the adapter.
        self._builders: dict[str, KeyBuilder] = {"": self._base}
        self._adapters = AdapterDigests()

    @property
    def layout(self) -> KVLayout:
        return self._base.layout

    @property
    def namespace(self) -> str:
        return self._base.namespace

    @property
    def fingerprint(self) -> str:
        """Of the base model's blocks. The two sides of an engine compare it."""
        return self._base.fingerprint

    def adapter_digest(self, lora_request: LoraRequest | None) -> str:
        """Digest of an adapter's content; "" for the base model. Does no I/O.

        Raises:
            NotReady: the adapter is being read; the answer is there a moment later.
            PoolError: its content is not known; such a request bypasses the pool.
        """
        return self._adapters.digest(lora_request)

    def scopes(self, adapter: str, group: int) -> tuple[Scope, ...]:
        """Scopes of a group on all ranks, one where ranks hold the same: a usable block is in all of them."""
        return self._builder(adapter).scopes((group,))

    def scope_of(self, adapter: str, group: int, rank: Rank) -> Scope:
        """The scope of one rank's part of a group."""
        return self._builder(adapter).scope(rank, group)

    def keys(self, hashes: Sequence[bytes], group: int) -> tuple[bytes, ...]:
        """Keys of the blocks of a group that `hashes`, a request's from its beginning, cover wholly, in order."""
        return tuple(self._base.keys(hashes, group))

    def number(self, rank: Rank) -> int:
        """The rank's place in the world, from 0 to `world` - 1: vLLM counts tensor-parallel ranks first."""
        return rank.pipeline * self._base.tensor_size + rank.tensor

    def stripe(self, rank: Rank) -> Stripe:
        """Which of the blocks this rank stores of those that it holds in common with others."""
        alike = self._base.tensor_size // self.layout.parallel.kv_shards
        return Stripe(rank.tensor % alike, alike)

    def _builder(self, adapter: str) -> KeyBuilder:
        builder = self._builders.get(adapter)
        if builder is None:
            if len(self._builders) >= MAX_BUILDERS:
                self._builders = {"": self._base}
            layout = dataclasses.replace(self.layout, adapter=adapter)
            builder = KeyBuilder(layout, self.namespace, self._base.tensor_size)
            self._builders[adapter] = builder
        return builder


def identity_of(
    vllm_config: Any,
    kv_cache_config: Any,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    model_id: str = "",
    environ: Mapping[str, str] = os.environ,
) -> Identity:
    """The identity of an engine, from what its scheduler and every worker know.

    Args:
        vllm_config: vLLM's `VllmConfig`.
        kv_cache_config: vLLM's `KVCacheConfig`, of either side.
        namespace: keeps deployments apart.
        model_id: names the weights, instead of what is read from the checkpoint.
        environ: the process's environment.

    Raises:
        NotSupported: cache groups or a way to parallelise that the pool cannot restore.
        ConfigError: block hashes that no other process shares; weights that cannot be identified.
        LimitExceeded: more ranks than one lookup can ask about.
    """
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    tensor_size, pipeline_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    context_size = getattr(parallel, "decode_context_parallel_size", 1)
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        raise NotSupported("prefill context parallelism is not supported: run with prefill_context_parallel_size=1")
    first_hash = first_hash_of(cache.prefix_caching_hash_algo, environ)
    groups = read_groups(
        kv_cache_config,
        tensor_size=tensor_size,
        pipeline_size=pipeline_size,
        context_size=context_size,
        total_kv_heads=model.get_total_num_kv_heads(),
    )
    model_dtype = str(model.dtype).removeprefix("torch.")
    layout = KVLayout(
        model=model_id or "checkpoint",
        weights_digest="" if model_id else _weights(vllm_config, model),
        model_dtype=model_dtype,
        quantization=str(model.quantization or ""),
        overrides=_overrides(vllm_config, environ),
        speculator=_speculator(vllm_config, model_id),
        kv_dtype=model_dtype if cache.cache_dtype == "auto" else str(cache.cache_dtype),
        memory_order=_memory_order(getattr(kv_cache_config, "kv_cache_layout", None) or cache.kv_cache_layout),
        packing=PACKING,
        groups=groups.layouts,
        parallel=ParallelLayout(kv_shards=groups.kv_shards, pipeline_size=pipeline_size),
        hash_algorithm=cache.prefix_caching_hash_algo,
        first_hash=first_hash,
        hash_block_tokens=groups.hash_block_tokens,
    )
    identity = Identity(
        layout, groups.rules, namespace=namespace, tensor_size=tensor_size, world=tensor_size * pipeline_size
    )
    for rule in groups.rules:
        identity.scopes("", rule.group)  # too many are refused now, not at the first request
    return identity


def rank_of(parallel_config: Any) -> Rank:
    """Which part of the model this worker holds: vLLM counts tensor-parallel ranks first, then pipeline ranks."""
    pipeline, tensor = divmod(parallel_config.rank, parallel_config.tensor_parallel_size)
    return Rank(tensor=tensor, pipeline=pipeline)


def first_hash_of(algorithm: str, environ: Mapping[str, str]) -> bytes:
    """The hash that vLLM's block chains start from; `ConfigError` where every process would have its own."""
    known = ALGORITHMS.get(algorithm)
    if known is None:
        raise NotSupported(f"block hashes by {algorithm!r} are not known: use one of {', '.join(ALGORITHMS)}")
    seed = environ.get(SEED_VARIABLE)
    if seed is None and not known.cryptographic:
        raise ConfigError(
            f"prefix_caching_hash_algo={algorithm} without {SEED_VARIABLE}: every engine process then starts its "
            "chains of block hashes from a random number, so that no engine finds another's blocks, nor its own after "
            f"a restart. Set {SEED_VARIABLE} to one value in all engines, or use sha256 or sha256_cbor"
        )
    return known.hash_seed(DEFAULT_SEED if seed is None else seed)


def _memory_order(layout: str | None) -> str:
    """Order of heads (H), tokens (N) and content (C) in a layer's part of a block, of vLLM's name of a layout."""
    if not layout:
        return "unknown"
    name = {"NHD": "LBNHC", "HND": "LBHNC"}.get(layout, layout)
    return "NHC" if name.find("N") < name.find("H") else "HNC"


def _weights(vllm_config: Any, model: Any) -> str:
    load = getattr(vllm_config, "load_config", None)
    if str(getattr(load, "load_format", "auto")) == "dummy":
        raise ConfigError(
            'dummy weights cannot be identified: set "model_id" in kv_connector_extra_config to a text that names them'
        )
    return checkpoint_digest(model.model, model.revision, getattr(load, "download_dir", None))


def _speculator(vllm_config: Any, model_id: str) -> str:
    """The draft model whose layers lie in the same blocks; "" where drafts need no layers."""
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    if draft is None or speculative is None or speculative.method in ("ngram", "ngram_gpu", "suffix"):
        return ""
    weights = draft.model if model_id else checkpoint_digest(draft.model, draft.revision)
    return f"{speculative.method} {weights}"


def _overrides(vllm_config: Any, environ: Mapping[str, str]) -> str:
    """Settings that change a block's numbers without changing the weights, as canonical JSON."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    found = {
        "hf_overrides": getattr(model, "hf_overrides", None),
        "model_class_overrides": getattr(model, "model_class_overrides", None),
        "disable_sliding_window": getattr(model, "disable_sliding_window", None),
        "model_impl": getattr(model, "model_impl", None),
        "skip_layers": getattr(cache, "kv_cache_dtype_skip_layers", None),
        "layer_partition": environ.get("VLLM_PP_LAYER_PARTITION"),
    }
    context_size = getattr(parallel, "decode_context_parallel_size", 1)
    if context_size > 1:
        found["context"] = [context_size, getattr(parallel, "cp_kv_cache_interleave_size", 1)]
    return json.dumps({name: value for name, value in found.items() if value}, sort_keys=True, default=_stable_name)


def _stable_name(value: Any) -> str:
    """For what JSON does not know (functions, types): a text without addresses, equal in every process."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
