"""vLLM's real `Scheduler` and `AsyncScheduler` with the connector, and nothing else that is real: whatever happens, no
pin, lease or request is left, no step asserts, no request sees other bytes than its own, and no key gets others'."""

from __future__ import annotations

import copy
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.config import KVEventsConfig, KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.structured_output import StructuredOutputManager

from pykvpool_connector.vllm import facade
from pykvpool_connector.vllm.identity import identity_of
from tests.properties.budgets import budget
from tests.vllm.engine.chances import CALM, Chances
from tests.vllm.engine.conftest import MODELS
from tests.vllm.engine.driver import transfer_config
from tests.vllm.engine.models import make_model
from tests.vllm.engine.neighbour import beside
from tests.vllm.engine.world import World

init_none_hash(sha256)
#: Ten times as many with --hypothesis-profile=explore.
EXAMPLES = 60
#: Enough for whatever is still under way, and for missing reports to be asked for (5 s of grace, 20 ms a step).
LAST_STEPS = 3_000

FULL, WINDOW, MLA = "full", "window", "mla"
LAYOUTS = {
    "full": [(FULL, 32)],
    "mla": [(MLA, 16)],
    "hybrid": [(FULL, 32), (WINDOW, 32)],
    "uneven": [(FULL, 32), (WINDOW, 16)],
}
WINDOW_TOKENS = 70
#: Longest prompt and output.
MAX_TOKENS = 400


@functools.cache
def base_config() -> Any:
    args = EngineArgs(
        model=str(make_model("llama", MODELS / "llama")), dtype="float32", enforce_eager=True, max_model_len=512,
        block_size=32, max_num_batched_tokens=128, max_num_seqs=6,
    )  # fmt: skip
    return args.create_engine_config()


@functools.cache
def structured_output() -> StructuredOutputManager:
    return StructuredOutputManager(base_config())


def cache_config(layout: str, blocks: int) -> KVCacheConfig:
    common = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    groups = []
    for number, (kind, size) in enumerate(LAYOUTS[layout]):
        if kind == FULL:
            spec = FullAttentionSpec(block_size=size, **common)
        elif kind == MLA:
            spec = MLAAttentionSpec(block_size=size, **common)
        else:
            spec = SlidingWindowSpec(block_size=size, sliding_window=WINDOW_TOKENS, **common)
        groups.append(KVCacheGroupSpec([f"layer{number}"], spec))
    config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    config.hash_block_size = min(size for _, size in LAYOUTS[layout])
    config.cache_hit_alignment_tokens = max(size for _, size in LAYOUTS[layout])
    return config


def enough_blocks(layout: str, in_flight_tokens: int) -> int:
    """For one request, however long it may get here; with fewer an engine would not start."""
    held = {FULL: MAX_TOKENS, MLA: MAX_TOKENS, WINDOW: min(MAX_TOKENS, WINDOW_TOKENS + in_flight_tokens)}
    return 1 + sum(-(-held[kind] // size) + 1 for kind, size in LAYOUTS[layout])


def build(
    scheduler_class: type[Scheduler] = Scheduler,
    *,
    layout: str = "full",
    v2: bool = False,
    tensor: int = 1,
    pipeline: int = 1,
    spare: int = 20,
    in_flight: int = 1,
    seed: int = 0,
    chances: Chances = CALM,
    role: str = "kv_both",
    neighbour: str = "",
    **extra: Any,
) -> World:
    config = copy.deepcopy(base_config())
    options = {"model_id": "tiny", "master": "tcp://127.0.0.1:1", "max_pinned_ratio": 0.5} | extra
    transfer = transfer_config(role=role, by_path=True, **options)
    if neighbour:
        transfer = beside(transfer, first=neighbour == "second")
    config.kv_transfer_config = KVTransferConfig(**transfer)
    config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    config.parallel_config.tensor_parallel_size = tensor
    config.parallel_config.pipeline_parallel_size = pipeline
    config.parallel_config.world_size = tensor * pipeline
    config.scheduler_config.async_scheduling = scheduler_class is AsyncScheduler
    blocks = enough_blocks(layout, config.max_in_flight_tokens) + spare
    config.cache_config.num_gpu_blocks = blocks
    kv = cache_config(layout, blocks)
    identity = identity_of(config, kv, model_id="tiny")
    block_size = kv.cache_hit_alignment_tokens

    def make(port: Any, now: Any) -> Scheduler:
        patched = pytest.MonkeyPatch()
        with patched.context() as patch:
            patch.setattr(facade.placement, "scheduler_port", port)
            patch.setattr(facade, "BootClock", lambda: SimpleNamespace(now_ms=now))
            scheduler = scheduler_class(
                config, kv, structured_output(), block_size=block_size, hash_block_size=kv.hash_block_size,
                log_stats=True,
            )  # fmt: skip
        scheduler.use_v2_model_runner = v2
        if in_flight > 1:
            scheduler.defer_block_free = True
        return scheduler

    return World(
        make, identity=identity, tensor=tensor, pipeline=pipeline, in_flight=in_flight, seed=seed, hasher=sha256,
        chances=chances,
    )  # fmt: skip


@budget(EXAMPLES)
@given(
    asynchronous=st.booleans(),
    v2=st.booleans(),
    layout=st.sampled_from(list(LAYOUTS)),
    ranks=st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]),
    in_flight=st.integers(1, 3),
    spare=st.sampled_from([1, 4, 12]),
    decode=st.booleans(),
    neighbour=st.sampled_from(["", "", "first", "second"]),
    failing=st.sampled_from([False, False, False, True]),
    seed=st.integers(0, 1 << 30),
)
def test_nothing_is_left_and_nothing_is_mixed_up(
    asynchronous, v2, layout, ranks, in_flight, spare, decode, neighbour, failing, seed
):
    tensor, pipeline = ranks
    world = build(
        AsyncScheduler if asynchronous else Scheduler,
        layout=layout,
        v2=v2,
        tensor=tensor,
        pipeline=pipeline,
        spare=spare,
        in_flight=in_flight,
        seed=seed,
        chances=Chances(load_failure=1.0, forget=0.0, lapse=0.0) if failing else Chances(),
        neighbour=neighbour,
        save_decode_cache=decode,
        lookup_timeout_ms=200,
        save_timeout_ms=500,
    )
    for _ in range(150):
        if world.rng.random() < 0.2 and len(world.known) < 8:
            world.add()
        if world.known and world.rng.random() < world.chances.abort:
            world.abort(world.rng.choice(sorted(world.known)))
        if world.rng.random() < world.chances.reset:
            world.new_weights()
        world.step()
    world.run(LAST_STEPS)
    world.check_nothing_left()
