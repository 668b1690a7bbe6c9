"""One builder of keys: what is saved is found, and different parts never share a key."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import InvalidArgument, LimitExceeded
from pykvpool.hashing import (
    BlockHasher,
    GroupLayout,
    KeyBuilder,
    KVLayout,
    ParallelLayout,
    Rank,
    format_scope,
    parse_scope,
)
from pykvpool.model.keys import Scope

HASHER = BlockHasher("sha256", None, 16)
FULL = GroupLayout(
    kind="full", layers=("l.0",), block_tokens=32, kv_heads=8, key_size=64, value_size=64, page_bytes=65536
)
SLIDING = replace(FULL, kind="sliding_window", layers=("l.1",), block_tokens=16, window_tokens=64)
LAYOUT = KVLayout(
    model="org/model",
    model_dtype="bfloat16",
    kv_dtype="bfloat16",
    memory_order="NHD",
    groups=(FULL, SLIDING),
    parallel=ParallelLayout(kv_shards=4, pipeline_size=2),
    hash_algorithm="sha256",
    first_hash=HASHER.none_hash,
    hash_block_tokens=16,
)


def test_p11_lookup_and_save_meet_because_they_use_the_same_builder() -> None:
    """The lookup asks for every rank and group; each worker's own scope is one of them, and none is left over."""
    builder = KeyBuilder(LAYOUT, "prod", tensor_size=4)
    asked = builder.scopes()
    saved = [builder.scope(Rank(tp, pp), group) for tp in range(4) for pp in range(2) for group in range(2)]
    assert sorted(asked) == sorted(saved)
    assert len(set(asked)) == len(asked) == 16
    assert {scope.fingerprint for scope in asked} == {LAYOUT.fingerprint}
    assert {scope.namespace for scope in asked} == {"prod"}
    assert builder.scopes([1]) == tuple(scope for scope in asked if scope.group == 1)


def test_ranks_that_hold_the_same_bytes_share_a_scope() -> None:
    """MLA, or fewer KV heads than ranks: stored once, not once per rank."""
    builder = KeyBuilder(LAYOUT, tensor_size=8)
    assert builder.scope(Rank(0), 0) == builder.scope(Rank(1), 0) != builder.scope(Rank(2), 0)
    assert builder.scopes() == KeyBuilder(LAYOUT, tensor_size=4).scopes()


def test_a_group_with_longer_blocks_is_keyed_by_the_last_hash_of_each() -> None:
    builder = KeyBuilder(LAYOUT, tensor_size=4)
    hashes = HASHER.hash_tokens(range(16 * 5))
    assert builder.keys(hashes, 1) == hashes
    assert builder.keys(hashes, 0) == [hashes[1], hashes[3]]
    assert builder.keys([], 0) == []


def test_impossible_ranks_groups_and_hashes_are_refused() -> None:
    builder = KeyBuilder(LAYOUT, tensor_size=4)
    with pytest.raises(InvalidArgument, match="tensor rank 4 is not one of the 4"):
        builder.scope(Rank(4), 0)
    with pytest.raises(InvalidArgument, match="pipeline rank 2"):
        builder.scope(Rank(0, 2), 0)
    with pytest.raises(InvalidArgument, match="group 2 is not one of the 2"):
        builder.scope(Rank(), 2)
    with pytest.raises(InvalidArgument, match="a sha256 hash has 32 bytes, this one has 3"):
        builder.keys([b"abc"], 1)
    with pytest.raises(InvalidArgument, match="multiple of 4"):
        KeyBuilder(LAYOUT, tensor_size=6)
    with pytest.raises(InvalidArgument, match="contains '/'"):
        KeyBuilder(LAYOUT, "a/b", tensor_size=4)


def test_more_scopes_than_one_lookup_carries_are_refused() -> None:
    wide = replace(LAYOUT, parallel=ParallelLayout(kv_shards=64, pipeline_size=8))
    with pytest.raises(LimitExceeded, match="at most 256"):
        KeyBuilder(wide, tensor_size=64).scopes()
    assert len(KeyBuilder(wide, tensor_size=64).scopes([])) == 0


part = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), max_size=20)


@given(st.builds(Scope, part.filter(bool), part, part, st.integers(0, 999)))
def test_a_scopes_text_reads_back(scope: Scope) -> None:
    assert parse_scope(format_scope(scope)) == scope


@given(st.text("ab/0", max_size=12))
def test_every_text_is_the_text_of_one_scope_or_of_none(text: str) -> None:
    try:
        scope = parse_scope(text)
    except InvalidArgument:
        return
    assert format_scope(scope) == text


@pytest.mark.parametrize("text", ["", "a/b", "a/b/c", "a/b/c/x", "a/b/c/-1", "a/b/c/01", "a///0", "/b/c/0", "a/b/c/²"])
def test_other_texts_are_no_scopes(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_scope(text)


def test_a_scope_that_could_not_be_read_back_is_not_written() -> None:
    with pytest.raises(InvalidArgument, match="contains '/'"):
        format_scope(Scope("a/b"))
    with pytest.raises(InvalidArgument, match="over 256 bytes"):
        format_scope(Scope("n" * 257))
