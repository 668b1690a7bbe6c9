"""Stand-ins for what vLLM hands a connector: configurations and cache groups, of the shapes that 0.32 gives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from pykvpool_connector.vllm.identity import Identity, identity_of


@dataclass
class FullAttentionSpec:
    block_size: int = 16
    num_kv_heads: int = 2
    head_size: int = 32
    head_size_v: int = 32
    dtype: str = "torch.float32"
    kv_quant_mode: Any = field(default_factory=lambda: SimpleNamespace(name="NONE"))
    sliding_window: int | None = None
    prefix_cacheable: bool = True
    dcp_sharded: bool = True

    @property
    def unpadded_page_size_bytes(self) -> int:
        return self.block_size * self.num_kv_heads * (self.head_size + self.head_size_v) * 4


@dataclass
class MLAAttentionSpec(FullAttentionSpec):
    num_kv_heads: int = 1
    head_size: int = 96
    head_size_v: int = 0
    cache_dtype_str: str | None = None


@dataclass
class SlidingWindowSpec(FullAttentionSpec):
    sliding_window: int | None = 128
    extra_retained_tokens: int = 0


@dataclass
class MambaSpec(FullAttentionSpec):
    pass


@dataclass
class CrossAttentionSpec(FullAttentionSpec):
    pass


@dataclass
class UniformTypeKVCacheSpecs:
    kv_cache_specs: dict[str, Any]
    block_size: int = 16
    prefix_cacheable: bool = True
    dcp_sharded: bool = True


def group(spec: Any, *layers: str, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        layer_names=list(layers) or [f"model.layers.{at}.attn" for at in range(3)],
        kv_cache_spec=spec,
        enable_kv_transfer=True,
        **more,
    )


def cache_config(*groups: Any, **more: Any) -> SimpleNamespace:
    values = {"kv_cache_groups": list(groups), "hash_block_size": None, "kv_cache_layout": "LBHNC", "num_blocks": 8}
    return SimpleNamespace(**{**values, **more})


def vllm_config(model: str = "/no/such/folder", **more: Any) -> SimpleNamespace:
    """`more` sets any field of the model's, cache's or parallel configuration by its name."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            model=model, revision=None, dtype="torch.float32", quantization=None, hf_overrides={}, total_kv_heads=2
        ),
        cache_config=SimpleNamespace(
            prefix_caching_hash_algo="sha256",
            cache_dtype="auto",
            kv_cache_layout="LBHNC",
            kv_cache_dtype_skip_layers=[],
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
            rank=0,
        ),
        load_config=SimpleNamespace(load_format="auto", download_dir=None),
        speculative_config=None,
    )
    for name, value in more.items():
        sections = [section for section in vars(config).values() if hasattr(section, name)]
        assert sections or name in vars(config), name
        setattr(sections[0] if sections else config, name, value)
    config.model_config.get_total_num_kv_heads = lambda: config.model_config.total_kv_heads
    return config


def identity(*groups: Any, namespace: str = "default", model_id: str = "tiny", **more: Any) -> Identity:
    """The identity of an engine with these cache groups (one of full attention, where none is given)."""
    return identity_of(
        vllm_config(**more),
        cache_config(*(groups or (group(FullAttentionSpec()),))),
        namespace=namespace,
        model_id=model_id,
        environ={},
    )
