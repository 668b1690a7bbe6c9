"""Gemma-3: full attention and sliding windows are cache groups of their own, and both have to be restored."""

from __future__ import annotations

from tests.vllm.engine.conftest import answers
from tests.vllm.engine.models import prompt

BLOCK = 32


def test_full_attention_and_sliding_windows_are_restored_together(pool, engine, expected):
    """A hit ends where both groups have what it takes (vLLM PR#53324). vLLM itself keeps a window's blocks only under
    the end of a chunk, so a prompt that goes another way in the middle finds nothing, and no wrong window either."""
    whole = prompt(51, 9 * BLOCK + 30)
    longer = whole + prompt(52, 40)
    branch = whole[: 5 * BLOCK] + prompt(52, 40)
    right = [expected([tokens], model="gemma")[0] for tokens in (whole, longer, branch)]
    with engine(pool, model="gemma") as one:
        assert one.run("result = len(scheduler.kv_cache_config.kv_cache_groups)") > 1
        assert answers(one.generate([whole])) == right[:1]
    with engine(pool, model="gemma") as fresh:
        assert answers(fresh.generate([whole])) == right[:1]
        assert fresh.hits() == 9 * BLOCK
        assert fresh.reset_prefix_cache()
        assert answers(fresh.generate([longer])) == right[1:2]
        assert fresh.hits() == (9 + 9) * BLOCK
        assert fresh.reset_prefix_cache()
        assert answers(fresh.generate([branch])) == right[2:]
        assert fresh.hits() == (9 + 9) * BLOCK
        assert fresh.leftovers() == {"blocks": 0, "requests": 0}
