"""Gemma-3: full attention and sliding windows are cache groups of their own, and both have to be restored."""

from __future__ import annotations

from tests.vllm.engine.conftest import answers
from tests.vllm.engine.models import prompt

BLOCK = 32
#: vLLM keeps a window's blocks only at the end of a prompt, unless it is told to keep them at more places; what it
#: keeps is what can be saved.
EVERYWHERE = {"model": "gemma", "prefix_cache_retention_interval": BLOCK}


def test_full_attention_and_sliding_windows_are_restored_together(pool, engine, expected):
    """Also where the hit ends before the end of the prompt that was saved (vLLM PR#53324)."""
    whole = prompt(51, 9 * BLOCK + 30)
    branch = whole[: 5 * BLOCK] + prompt(52, 40)
    right = [expected([tokens], model="gemma")[0] for tokens in (whole, branch)]
    with engine(pool, **EVERYWHERE) as one:
        assert one.run("result = len(scheduler.kv_cache_config.kv_cache_groups)") > 1
        assert answers(one.generate([whole])) == right[:1]
    with engine(pool, **EVERYWHERE) as fresh:
        assert answers(fresh.generate([whole])) == right[:1]
        assert fresh.hits() == 9 * BLOCK
        assert fresh.reset_prefix_cache()
        assert answers(fresh.generate([branch])) == right[1:]
        assert fresh.hits() == (9 + 5) * BLOCK
        assert fresh.leftovers() == {"blocks": 0, "requests": 0}
