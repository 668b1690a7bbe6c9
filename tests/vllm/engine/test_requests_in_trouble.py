"""Requests that are preempted, or aborted while their blocks are being saved or loaded: nothing leaks, nothing is mixed
up, and what was computed is found again."""

from __future__ import annotations

from tests.vllm.engine.conftest import answers
from tests.vllm.engine.models import prompt

BLOCK = 32
#: Keeps back what the pool has finished, so that saves and loads stay under way as long as a test wants.
HOLD = """
from vllm.distributed.kv_transfer import get_kv_transfer_group
worker = get_kv_transfer_group()._worker
worker.poll = lambda: None
"""
LET_GO = """
from vllm.distributed.kv_transfer import get_kv_transfer_group
del get_kv_transfer_group()._worker.poll
"""
STATE = """
side = scheduler.get_kv_connector()._scheduler
result = {"jobs": side.save_jobs, "pinned": side.pinned, "loading": side.loading, "lookups": side.open_lookups}
"""
#: Steps in which a lookup is answered and a load or save begins; each lasts a millisecond or more.
SOON = 2_000
NOTHING = {"jobs": 0, "pinned": 0, "loading": 0, "lookups": 0}


def step_until(one, **state: int) -> None:
    for _ in range(SOON):
        if one.run(STATE).items() >= state.items():
            return
        one.step()
    raise AssertionError(f"{state} never came: {one.run(STATE)}")


def test_preempted_requests_go_on_as_if_nothing_had_happened(pool, engine, expected):
    """Preemption frees GPU blocks while a save still reads them (vLLM#52360)."""
    prompts = [prompt(seed, 3 * BLOCK + at) for at, seed in enumerate((41, 42), 1)]
    right = expected(prompts, max_tokens=100)
    # All blocks may be pinned: of so few, the usual part is two.
    with engine(pool, extra={"max_pinned_ratio": 1.0}, num_gpu_blocks_override=12, max_model_len=320) as one:
        assert answers(one.generate(prompts, 100)) == right
        assert one.metrics()["vllm:num_preemptions"] > 0
        assert one.run(STATE) == NOTHING
        assert one.leftovers() == {"blocks": 0, "requests": 0}
        for tokens, (said, _) in zip(prompts, right, strict=True):
            before = one.hits()
            assert one.reset_prefix_cache()
            [again] = one.generate([tokens + said[:-1]], 1)
            assert again["tokens"] == said[-1:]
            assert one.hits() - before == (len(tokens) + len(said) - 2) // BLOCK * BLOCK


def test_an_abort_while_its_blocks_are_saved_keeps_them_until_they_are(pool, engine, expected):
    tokens = prompt(43, 6 * BLOCK + 5)
    right = expected([tokens])
    with engine(pool) as one:
        one.run(HOLD)
        name = one.submit(tokens, 1_000)
        step_until(one, pinned=6)
        one.abort([name])
        one.step(2)
        assert one.run(STATE)["pinned"] == 6
        assert not one.reset_prefix_cache()
        one.run(LET_GO)
        one.settle()
        assert one.run(STATE) == NOTHING
        assert one.leftovers() == {"blocks": 0, "requests": 0}
        assert one.reset_prefix_cache()
        assert answers(one.generate([tokens])) == right
        assert one.hits() == 6 * BLOCK


def test_an_abort_while_its_blocks_are_loaded_leaves_nothing(pool, engine, expected):
    """A finished_recving for a request that vLLM has forgotten trips an assertion."""
    tokens = prompt(44, 6 * BLOCK + 5)
    right = expected([tokens])
    with engine(pool) as one:
        one.generate([tokens])
        assert one.reset_prefix_cache()
        one.run(HOLD)
        name = one.submit(tokens, 8)
        step_until(one, loading=1)
        one.abort([name])
        one.step(2)
        assert one.leftovers()["requests"] == 1
        one.run(LET_GO)
        one.settle()
        assert one.run(STATE) == NOTHING
        assert one.leftovers() == {"blocks": 0, "requests": 0}
        assert one.reset_prefix_cache()
        before = one.hits()
        assert answers(one.generate([tokens])) == right
        assert one.hits() - before == 6 * BLOCK
