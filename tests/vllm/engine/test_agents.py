"""Agents' sessions that alternate between two engines on one pool, beside one engine with its own cache alone."""

from __future__ import annotations

from tests.vllm.engine.conftest import answers
from tests.vllm.engine.models import prompt

BLOCK = 32
SESSIONS = 5
TURNS = 18
#: Tokens of a session's first prompt, of what each turn adds, and of an answer.
FIRST, ADDED, ANSWER = 24 * BLOCK, 12, 4
#: Blocks of an engine's own cache: about two sessions.
OWN_BLOCKS = 72


def test_p11_turns_find_all_that_any_engine_computed_before(pool, engine):
    """Exactly the blocks that the session's last turn left, whichever engine ran it; and far more than an engine's own
    cache keeps of so many sessions."""
    # So small a cache would let a save of a whole prompt pin only a part of it.
    options = {"num_gpu_blocks_override": OWN_BLOCKS, "extra": {"max_pinned_ratio": 1.0}}
    first, second = engine(pool, **options), engine(pool, **options)
    alone = engine(num_gpu_blocks_override=OWN_BLOCKS)
    engines = [first.ready(), second.ready()]
    alone.ready()
    sessions = [prompt(100 + number, FIRST) for number in range(SESSIONS)]
    kept = [0] * SESSIONS  # tokens in the pool
    asked = expected_hits = alone_hits = 0
    for turn in range(TURNS):
        for number, tokens in enumerate(sessions):
            one = engines[(turn + number) % 2]
            assert one.reset_prefix_cache()
            before = one.hits()
            [output] = one.generate([tokens], max_tokens=ANSWER)
            assert one.hits() - before == kept[number] == output["cached"]
            [single] = alone.generate([tokens], max_tokens=ANSWER)
            assert answers([output]) == answers([single])
            asked += len(tokens)
            expected_hits += kept[number]
            alone_hits += single["cached"]
            # The last token of an answer is never computed.
            kept[number] = (len(tokens) + ANSWER - 1) // BLOCK * BLOCK
            sessions[number] = [*tokens, *output["tokens"], *prompt(1_000 * turn + number, ADDED)]
    assert sum(each.hits() for each in engines) == expected_hits
    assert expected_hits / asked > 0.90
    assert alone_hits / asked < expected_hits / asked - 0.30
    for one in engines:
        assert one.leftovers() == {"blocks": 0, "requests": 0}
        one.close()
    alone.close()
