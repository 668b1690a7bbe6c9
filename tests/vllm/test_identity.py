"""Engines share a block exactly when its bytes mean the same to both; every side of one engine builds the same keys."""

import json
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from pykvpool.errors import ConfigError, LimitExceeded, NotReady, NotSupported, PoolError
from pykvpool.hashing import BlockHasher, Rank
from pykvpool_connector.vllm.checkpoint import digest_files
from pykvpool_connector.vllm.identity import Identity, identity_of, rank_of
from tests.vllm.fakes import (
    CrossAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    cache_config,
    group,
    identity,
    vllm_config,
)

HASHES = BlockHasher("sha256", None, 16).hash_tokens(range(160))


def checkpoint(folder: Path, *, weights: bytes = b"w" * 5000, hidden: int = 64, shard: str = "model") -> Path:
    """A checkpoint folder of one shard with two tensors."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"hidden_size": hidden}))
    half = len(weights) // 2
    tensors = {
        "a": {"dtype": "U8", "shape": [half], "data_offsets": [0, half]},
        "b": {"dtype": "U8", "shape": [len(weights) - half], "data_offsets": [half, len(weights)]},
    }
    header = json.dumps(tensors).encode()
    (folder / f"{shard}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + weights)
    return folder


def test_a_side_that_sees_one_spec_of_a_uniform_group_has_the_same_fingerprint():
    spec = FullAttentionSpec()
    worker = identity(group(UniformTypeKVCacheSpecs({"a": spec, "b": spec}), "a", "b"))
    scheduler = identity(group(spec, "a", "b"))
    assert worker.fingerprint == scheduler.fingerprint
    assert worker.scopes("", 0) == scheduler.scopes("", 0)


def test_pipeline_ranks_that_see_other_layers_have_the_same_fingerprint_and_scopes_of_their_own():
    first = identity(group(FullAttentionSpec(), "layer.0", "layer.1"), pipeline_parallel_size=2)
    second = identity(group(FullAttentionSpec(), "layer.2"), pipeline_parallel_size=2)
    assert first.fingerprint == second.fingerprint
    assert first.world == 2
    assert first.scopes("", 0) == (
        first.scope_of("", 0, Rank(pipeline=0)),
        second.scope_of("", 0, Rank(pipeline=1)),
    )
    assert len(set(first.scopes("", 0))) == 2, "a stage would take the other's part for its own"


def test_everything_that_changes_a_blocks_bytes_changes_the_fingerprint(tmp_path):
    def of(*groups, layout="LBHNC", environ=None, **more):
        cache = cache_config(*(groups or (group(FullAttentionSpec()),)), kv_cache_layout=layout)
        return identity_of(vllm_config(**more), cache, model_id=more_id, environ=environ or {}).fingerprint

    more_id = "tiny"
    found = [
        of(),
        of(dtype="torch.bfloat16"),
        of(quantization="awq"),
        of(cache_dtype="fp8"),
        of(hf_overrides={"rope_theta": 5}),
        of(kv_cache_dtype_skip_layers=["0"]),
        of(prefix_caching_hash_algo="sha256_cbor"),
        of(environ={"PYTHONHASHSEED": "7"}),
        of(layout="LBNHC"),
        of(group(FullAttentionSpec(block_size=32))),
        of(group(FullAttentionSpec(dtype="torch.bfloat16"))),
        of(group(FullAttentionSpec(kv_quant_mode=SimpleNamespace(name="FP8_PER_TENSOR")))),
        of(group(FullAttentionSpec(head_size=16))),
        of(group(FullAttentionSpec(), "other.layer")),
        of(group(MLAAttentionSpec())),
        of(group(FullAttentionSpec()), group(SlidingWindowSpec())),
        of(tensor_parallel_size=2, total_kv_heads=2),
        of(pipeline_parallel_size=2),
        of(decode_context_parallel_size=2, tensor_parallel_size=2),
    ]
    more_id = "another"
    found.append(of())
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("layout", ["LBHNC", "LHBNC", "BLHNC", "BHLNC"])
def test_layouts_that_differ_in_where_blocks_lie_share_them(layout):
    """An object is packed layer by layer: only the order within a layer's part of a block is in its bytes."""
    cache = cache_config(group(FullAttentionSpec()), kv_cache_layout=layout)
    assert identity_of(vllm_config(), cache, model_id="tiny", environ={}).fingerprint == identity().fingerprint


def test_the_same_checkpoint_under_another_path_is_the_same(tmp_path):
    here, there = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b" / "c")
    assert identity(model=str(here), model_id="").fingerprint == identity(model=str(there), model_id="").fingerprint


def test_a_fine_tuning_with_equal_names_shapes_and_sizes_is_another_model(tmp_path):
    """Index, shard names, sizes and headers agree; only numbers differ."""
    base = checkpoint(tmp_path / "base", weights=b"w" * 5000)
    tuned = checkpoint(tmp_path / "tuned", weights=b"w" * 2500 + b"x" * 2500)
    assert digest_files(base) != digest_files(tuned)


@pytest.mark.parametrize("change", [{"hidden": 65}, {"shard": "model-00001-of-00001"}, {"weights": b"w" * 5001}])
def test_configuration_shard_names_and_sizes_tell_checkpoints_apart(tmp_path, change):
    assert digest_files(checkpoint(tmp_path / "a")) != digest_files(checkpoint(tmp_path / "b", **change))


def test_headers_tell_checkpoints_apart_whose_bytes_agree(tmp_path):
    one, other = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")
    file = other / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"U8"', b'"I8"'))
    assert digest_files(one) != digest_files(other)


def test_weights_that_changed_on_disk_are_read_again(tmp_path):
    """Also where their sizes are what they were."""
    file = checkpoint(tmp_path / "a") / "model.safetensors"
    before = digest_files(tmp_path / "a")
    changed = file.stat().st_mtime_ns + 1_000_000
    file.write_bytes(file.read_bytes().replace(b"w", b"x"))
    os.utime(file, ns=(changed, changed))
    middle = digest_files(tmp_path / "a")
    file.write_bytes(b"no longer safetensors")
    assert len({before, middle, digest_files(tmp_path / "a")}) == 3


def test_weights_in_pytorch_files_are_sampled(tmp_path):
    for name, weights in (("a", bytes(100_000)), ("b", bytes(50_000) + b"x" * 50_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pytorch_model.bin").write_bytes(weights)
    assert digest_files(tmp_path / "a") != digest_files(tmp_path / "b")


def test_weights_that_cannot_be_identified_ask_for_a_model_id(tmp_path):
    with pytest.raises(ConfigError, match="model_id"):
        identity(model=str(tmp_path), model_id="")
    with pytest.raises(ConfigError, match="model_id"):
        identity(model="/no/such/folder", model_id="")
    dummy = SimpleNamespace(load_format="dummy", download_dir=None)
    with pytest.raises(ConfigError, match="model_id"):
        identity(load_config=dummy, model_id="")
    assert identity(load_config=dummy, model_id="named")


def test_xxhash_without_a_seed_is_refused_with_the_reason():
    """Hash seeds differ between processes (LMCache#1095): nothing would ever be found, silently."""
    for algorithm in ("xxhash", "xxhash_cbor"):
        with pytest.raises(ConfigError, match="PYTHONHASHSEED") as caught:
            identity(prefix_caching_hash_algo=algorithm)
        assert "random" in str(caught.value)
        seeded = identity_of(
            vllm_config(prefix_caching_hash_algo=algorithm),
            cache_config(group(FullAttentionSpec())),
            model_id="tiny",
            environ={"PYTHONHASHSEED": "0"},
        )
        assert len(seeded.layout.first_hash) == 16


def test_a_seed_that_is_set_and_empty_is_a_seed():
    """vLLM asks whether the variable is there, not what is in it."""
    config, environ = cache_config(group(FullAttentionSpec())), {"PYTHONHASHSEED": ""}
    assert (
        identity_of(vllm_config(), config, model_id="t", environ=environ).layout.first_hash
        == BlockHasher("sha256", "", 16).none_hash
    )
    assert (
        identity_of(
            vllm_config(prefix_caching_hash_algo="xxhash"), config, model_id="t", environ=environ
        ).layout.first_hash
        == BlockHasher("xxhash", "", 16).none_hash
    )


def test_the_draft_model_of_speculative_decoding_is_part_of_the_fingerprint(tmp_path):
    """Its layers lie in the same blocks."""

    def of(method: str, draft: Path | str, model_id: str = "tiny") -> str:
        config = SimpleNamespace(model=str(draft), revision=None)
        speculative = SimpleNamespace(method=method, draft_model_config=config)
        return identity(
            speculative_config=speculative, model=str(checkpoint(tmp_path / f"{len(list(tmp_path.iterdir()))}")),
            model_id=model_id,
        ).fingerprint  # fmt: skip

    drafts = checkpoint(tmp_path / "one"), checkpoint(tmp_path / "two", weights=b"x" * 5000)
    prints = {of("eagle", "one"), of("eagle", "two"), of("draft_model", "one"), of("ngram", "one")}
    assert len(prints) == 4
    assert of("ngram", "one") == identity().fingerprint
    assert of("eagle", drafts[0], model_id="") != of("eagle", drafts[1], model_id="")
    with pytest.raises(ConfigError, match="model_id"):
        of("eagle", "/no/such/draft", model_id="")


def test_the_first_hash_is_vllms():
    assert identity().layout.first_hash == BlockHasher("sha256", None, 16).none_hash
    seeded = identity_of(
        vllm_config(), cache_config(group(FullAttentionSpec())), model_id="t", environ={"PYTHONHASHSEED": "0"}
    )
    assert seeded.layout.first_hash == BlockHasher("sha256", "0", 16).none_hash
    assert seeded.fingerprint != identity(model_id="t").fingerprint
    assert seeded.layout.family == identity(model_id="t").layout.family


@pytest.mark.parametrize("spec", [MambaSpec(), CrossAttentionSpec()])
def test_mamba_and_cross_attention_are_refused_by_name(spec):
    with pytest.raises(NotSupported, match=rf"{type(spec).__name__}.*layers state\.0"):
        identity(group(FullAttentionSpec()), group(spec, "state.0"))
    with pytest.raises(NotSupported, match=type(spec).__name__):
        identity(group(UniformTypeKVCacheSpecs({"state.0": spec})))


def test_a_kind_of_cache_that_is_not_known_is_refused_by_name():
    class BrandNewSpec(FullAttentionSpec):
        pass

    with pytest.raises(NotSupported, match="BrandNewSpec"):
        identity(group(BrandNewSpec()))
    with pytest.raises(NotSupported, match="SlidingWindowSpec"):
        identity(group(SlidingWindowSpec(prefix_cacheable=False)))
    with pytest.raises(NotSupported, match="no KV cache"):
        identity_of(vllm_config(), cache_config(), model_id="tiny", environ={})
    with pytest.raises(NotSupported, match="prefill_context_parallel_size"):
        identity(prefill_context_parallel_size=2)


def test_rules_tell_what_of_a_prefix_each_group_needs():
    both = identity(group(FullAttentionSpec(block_size=32)), group(SlidingWindowSpec(extra_retained_tokens=3), "w"))
    assert both.hash_block_tokens == 16
    full, window = both.groups
    assert (full.group, full.kind, full.block_tokens, full.hash_stride, full.window_tokens) == (0, "full", 32, 2, 0)
    assert (window.group, window.kind, window.block_tokens, window.hash_stride) == (1, "window", 16, 1)
    assert window.window_tokens == 131
    assert both.keys(HASHES, 0) == tuple(HASHES[1::2])
    assert both.keys(HASHES, 1) == tuple(HASHES)
    assert identity(group(MLAAttentionSpec())).groups[0].kind == "full"
    finer = cache_config(group(FullAttentionSpec(block_size=32)), hash_block_size=8)
    assert identity_of(vllm_config(), finer, model_id="tiny", environ={}).groups[0].hash_stride == 4
    uneven = cache_config(group(FullAttentionSpec(block_size=32)), hash_block_size=24)
    with pytest.raises(NotSupported, match="24 tokens"):
        identity_of(vllm_config(), uneven, model_id="tiny", environ={})


def test_decode_context_ranks_spread_the_tokens_of_a_block():
    spread = identity(tensor_parallel_size=2, decode_context_parallel_size=2)
    assert spread.groups[0].block_tokens == spread.hash_block_tokens == 32
    assert len(spread.scopes("", 0)) == 2
    latents = identity(group(MLAAttentionSpec()), tensor_parallel_size=2, decode_context_parallel_size=2)
    assert len(latents.scopes("", 0)) == 2
    config = vllm_config(tensor_parallel_size=2, decode_context_parallel_size=2)
    config.parallel_config.cp_kv_cache_interleave_size = 16
    other = identity_of(config, cache_config(group(FullAttentionSpec())), model_id="tiny", environ={})
    assert other.fingerprint != spread.fingerprint


@pytest.mark.parametrize(
    ("spec", "tensor", "heads", "shards"),
    [
        (FullAttentionSpec(num_kv_heads=2), 2, 4, 2),
        (FullAttentionSpec(num_kv_heads=1), 2, 2, 2),
        (FullAttentionSpec(num_kv_heads=1), 8, 2, 2),
        (MLAAttentionSpec(), 8, 128, 1),
    ],
)
def test_ranks_that_hold_the_same_bytes_share_a_scope_and_store_each_block_once(spec, tensor, heads, shards):
    engine = identity(group(spec), tensor_parallel_size=tensor, total_kv_heads=heads)
    ranks = [Rank(tensor=at) for at in range(tensor)]
    assert len(engine.scopes("", 0)) == shards
    assert {engine.scope_of("", 0, rank) for rank in ranks} == set(engine.scopes("", 0))
    for key in HASHES:
        takers = [engine.scope_of("", 0, rank) for rank in ranks if engine.stripe(rank).takes(key)]
        assert sorted(takers) == sorted(engine.scopes("", 0))


def test_gqa_layers_that_disagree_on_repeated_heads_are_stored_by_every_rank():
    groups = [group(FullAttentionSpec(num_kv_heads=1)), group(SlidingWindowSpec(num_kv_heads=2), "w")]
    for order in (groups, groups[::-1]):
        assert len(identity(*order, tensor_parallel_size=4, total_kv_heads=2).scopes("", 0)) == 4


def test_more_ranks_than_a_lookup_asks_about_are_refused_at_the_start():
    with pytest.raises(LimitExceeded, match="257 scopes"):
        identity(pipeline_parallel_size=257)


def test_ranks_are_counted_as_vllm_counts_them():
    parallel = SimpleNamespace(rank=5, tensor_parallel_size=2)
    assert rank_of(parallel) == Rank(tensor=1, pipeline=2)


def test_namespaces_and_adapters_are_part_of_every_scope():
    assert identity(namespace="a").scopes("", 0) != identity(namespace="b").scopes("", 0)
    engine = identity()
    assert engine.scopes("digest", 0) != engine.scopes("", 0)
    assert engine.scopes("digest", 0) == identity().scopes("digest", 0)


def settled(engine: Identity, lora: SimpleNamespace) -> str | PoolError:
    """The answer about an adapter once it has been read (the reader's thread is joined, not waited for by time)."""
    while True:
        try:
            return engine.adapter_digest(lora)
        except NotReady:
            for thread in threading.enumerate():
                if thread.name == "pykvpool-adapter":
                    thread.join()
        except PoolError as error:
            return error


def test_an_adapter_is_known_by_its_content_not_by_its_name(tmp_path):
    def adapter(name: str, weights: bytes) -> SimpleNamespace:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(weights)
        return SimpleNamespace(lora_name=name, lora_int_id=1, lora_path=str(folder), load_inplace=False)

    engine = identity()
    one, same, other = adapter("one", b"1"), adapter("same", b"1"), adapter("other", b"2")
    assert engine.adapter_digest(None) == ""
    assert settled(engine, one) == settled(engine, same)
    assert settled(engine, one) != settled(engine, other)


def test_an_adapter_whose_content_is_not_known_has_no_digest(tmp_path):
    engine = identity()
    missing = SimpleNamespace(lora_name="x", lora_int_id=1, lora_path=str(tmp_path / "none"), load_inplace=False)
    assert isinstance(settled(engine, missing), NotSupported)
    (tmp_path / "empty").mkdir()
    empty = SimpleNamespace(lora_name="x", lora_int_id=1, lora_path=str(tmp_path / "empty"), load_inplace=False)
    assert isinstance(settled(engine, empty), NotSupported)
    (tmp_path / "file").write_bytes(b"weights")
    inplace = SimpleNamespace(lora_name="x", lora_int_id=1, lora_path=str(tmp_path), load_inplace=True)
    assert isinstance(settled(engine, inplace), NotSupported)
    inplace.load_inplace = False
    assert isinstance(settled(engine, inplace), str)


def test_the_fingerprint_is_the_same_in_another_process_with_another_hash_seed(tmp_path):
    folder = checkpoint(tmp_path / "model")
    program = (
        "from tests.vllm.fakes import identity;"
        f"print(identity(model={str(folder)!r}, model_id='', hf_overrides={{'f': print}}).fingerprint)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
