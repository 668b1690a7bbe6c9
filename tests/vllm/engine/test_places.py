"""Wherever the pool's node is and whoever moves the bytes: the same hits, the same tokens."""

from __future__ import annotations

import os

import pytest

from tests.vllm.engine.conftest import answers
from tests.vllm.engine.models import prompt

BLOCK = 32
#: What the configuration asks for, and what the engine's log says of it.
PLACES = {
    "own thread, over tcp": ({"placement": "embedded", "fabrics": ["tcp"]}, "a thread of this process"),
    "own thread, over shm": ({"placement": "embedded", "fabrics": ["shm"]}, "a thread of this process"),
    "the host's node": ({"placement": "node"}, "the node 'n1' of this host"),
    "the host's node, found by itself": ({}, "the node 'n1' of this host"),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_node_is_another_process(empty_pool, engine, expected, place):
    empty_pool.start_master()
    empty_pool.start_node()
    extra, said = PLACES[place]
    tokens = [prompt(seed, 8 * BLOCK + 5) for seed in (21, 22)]
    right = expected(tokens)
    with engine(empty_pool, extra=extra, env={"VLLM_LOGGING_LEVEL": "INFO"}) as one:
        assert answers(one.generate(tokens)) == right
        assert empty_pool.keys() == 16
        assert one.reset_prefix_cache()
        assert answers(one.generate(tokens)) == right
        assert one.hits() == 2 * 8 * BLOCK
        assert one.leftovers() == {"blocks": 0, "requests": 0}
        assert f"the scheduler's pool I/O is done by {said}" in one.log.read_text()
        assert f"rank 0's pool I/O is done by {said}" in one.log.read_text()


def test_one_command_is_enough(engine, expected):
    """Without any pool: the engine starts one of its own, and it ends with the engine."""
    tokens = prompt(23, 8 * BLOCK + 5)
    right = expected([tokens])
    with engine(extra={"embedded_size": "64MiB"}) as one:
        assert answers(one.generate([tokens])) == right
        assert one.reset_prefix_cache()
        assert answers(one.generate([tokens])) == right
        assert one.hits() == 8 * BLOCK
        pools = one.run(OWN_POOLS)
        assert len(pools) == 1
    for pid in pools:
        with pytest.raises(ProcessLookupError):
            # Gone and waited for: its parent was the engine, which has ended in order.
            os.kill(pid, 0)


OWN_POOLS = """
from pykvpool.host.local_pool import _children
result = [child.process.pid for child in _children.values()]
"""
