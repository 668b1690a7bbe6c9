"""Engines of one model whose block hashes begin differently are seen where they meet (LMCache#1095, vLLM PR#51875)."""

from dataclasses import replace

import pytest

from pykvpool.hashing import BlockHasher, GroupLayout, KeyBuilder, KVLayout
from pykvpool.master.seeds import SeedWatch
from pykvpool.model.facts import ScopeInterned
from pykvpool.model.ids import ScopeId
from pykvpool.model.keys import Scope

LAYOUT = KVLayout(
    model="org/model",
    model_dtype="bfloat16",
    kv_dtype="bfloat16",
    memory_order="HNC",
    groups=(
        GroupLayout(
            kind="full", layers=("a",), block_tokens=16, kv_heads=2, key_size=32, value_size=32, page_bytes=4096
        ),
    ),
    hash_algorithm="sha256",
    first_hash=BlockHasher("sha256", "0", 16).none_hash,
    hash_block_tokens=16,
)


def scopes(layout: KVLayout, namespace: str = "default", ranks: int = 1) -> list[ScopeInterned]:
    layout = replace(layout, parallel=replace(layout.parallel, kv_shards=ranks))
    built = KeyBuilder(layout, namespace, ranks).scopes()
    return [ScopeInterned(ScopeId(number), scope) for number, scope in enumerate(built)]


def seeded(seed: str) -> KVLayout:
    return replace(LAYOUT, first_hash=BlockHasher("sha256", seed, 16).none_hash)


@pytest.fixture
def warnings(caplog):
    return lambda: [record.getMessage() for record in caplog.records]


def test_one_model_with_two_first_hashes_is_warned_of_once(warnings):
    watch = SeedWatch()
    watch.note(scopes(LAYOUT))
    assert warnings() == []
    watch.note(scopes(seeded("1")))
    watch.note(scopes(seeded("1"), ranks=1))
    watch.note(scopes(LAYOUT))
    [warning] = warnings()
    assert "PYTHONHASHSEED" in warning
    assert LAYOUT.family in warning
    watch.note(scopes(seeded("2")))
    assert "3 different" in warnings()[-1]


def test_engines_that_share_nothing_anyway_are_not_compared(warnings):
    watch = SeedWatch()
    watch.note(scopes(LAYOUT, ranks=2))
    watch.note(scopes(LAYOUT, ranks=2))
    watch.note(scopes(seeded("1"), namespace="another"))
    watch.note(scopes(replace(seeded("1"), model_dtype="float16")))
    watch.note([ScopeInterned(ScopeId(9), Scope("default", "a text of a user's own"))])
    watch.note([ScopeInterned(ScopeId(9), Scope("default"))])
    assert warnings() == []
