"""What one engine has computed, a second, fresh engine process loads: exactly that, bit for bit."""

from __future__ import annotations

from tests.vllm.engine.conftest import answers
from tests.vllm.engine.models import prompt

BLOCK = 32


def test_a_fresh_engine_process_loads_what_another_computed(pool, engine, expected):
    tokens = prompt(1, 10 * BLOCK + 7)
    right = expected([tokens])
    with engine(pool) as first:
        assert answers(first.generate([tokens])) == right
        assert first.hits() == 0
        assert first.leftovers() == {"blocks": 0, "requests": 0}
    assert pool.keys() == 10
    with engine(pool) as second:
        assert answers(second.generate([tokens])) == right
        assert second.hits() == 10 * BLOCK
        assert second.leftovers() == {"blocks": 0, "requests": 0}


def test_an_engine_loads_what_it_forgot(pool, engine, expected):
    tokens = [prompt(seed, 6 * BLOCK + 3 * seed) for seed in (1, 2, 3)]
    right = expected(tokens)
    with engine(pool) as one:
        assert answers(one.generate(tokens)) == right
        assert one.reset_prefix_cache()
        again = one.generate(tokens)
        assert answers(again) == right
        assert [each["cached"] for each in again] == [6 * BLOCK] * 3
        assert one.hits() == 3 * 6 * BLOCK


def test_at_least_one_token_is_left_to_compute(pool, engine, expected):
    """A prompt that ends where a block ends cannot be loaded whole: the last token's logits are needed."""
    tokens = prompt(4, 4 * BLOCK)
    right = expected([tokens])
    with engine(pool) as one:
        one.generate([tokens])
        assert one.reset_prefix_cache()
        assert answers(one.generate([tokens])) == right
        assert one.hits() == 3 * BLOCK
