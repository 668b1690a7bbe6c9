"""The hit is the longest prefix that every rank and every cache group can restore."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pykvpool.host.port import Found
from pykvpool_connector.vllm.scheduler.hits import Hits
from tests.vllm.engine_fakes import FakeRequest
from tests.vllm.fakes import FullAttentionSpec, SlidingWindowSpec, group, identity

FULL = identity(group(FullAttentionSpec()))


def hybrid(window: int, window_block: int = 16, full_block: int = 16):
    return identity(
        group(FullAttentionSpec(block_size=full_block), "full"),
        group(SlidingWindowSpec(block_size=window_block, sliding_window=window), "window"),
    )


def present(*blocks: int, of: int = 20) -> bytes:
    return bytes(block in blocks for block in range(of))


def test_at_least_one_token_is_left_to_compute():
    hits = Hits(FULL)
    assert hits.longest([Found(4)], 0, 64) == 48
    assert hits.longest([Found(4)], 0, 65) == 64
    assert hits.longest([Found(4)], 0, 1) == 0


def test_a_hit_goes_beyond_what_the_engine_has_or_is_none():
    hits = Hits(FULL)
    assert hits.longest([Found(3)], 32, 200) == 48
    assert hits.longest([Found(3)], 48, 200) == 48
    assert hits.longest([Found(1)], 48, 200) == 48


def test_full_attention_needs_the_whole_prefix_and_a_window_only_its_end():
    hits = Hits(hybrid(window=33))
    assert hits.longest([Found(10), Found(0, present(6, 7))], 0, 300) == 8 * 16
    assert hits.longest([Found(7), Found(0, present(6, 7))], 0, 300) == 0
    assert hits.longest([Found(10), Found(0, present(6, 7, 9))], 0, 300) == 8 * 16
    assert hits.longest([Found(10), Found(0, present(8, 9))], 0, 300) == 10 * 16


def test_the_token_before_a_windows_first_block_boundary_is_not_needed():
    """A window of 17 tokens counts the next token itself: 16 before it."""
    assert Hits(hybrid(window=17)).longest([Found(9), Found(0, present(4))], 0, 300) == 5 * 16
    assert Hits(hybrid(window=18)).longest([Found(9), Found(0, present(4))], 0, 300) == 0


def test_a_short_prefix_is_whole_inside_the_window():
    hits = Hits(hybrid(window=100))
    assert hits.longest([Found(2), Found(0, present(0, 1))], 0, 300) == 32
    assert hits.longest([Found(2), Found(0, present(1))], 0, 300) == 0


def test_what_the_engine_has_itself_need_not_be_in_the_pool():
    hits = Hits(hybrid(window=49))
    assert hits.longest([Found(8), Found(0, present(6, 7))], 0, 300) == 0
    assert hits.longest([Found(8), Found(0, present(6, 7))], 6 * 16, 300) == 8 * 16


def test_a_hit_ends_where_blocks_of_all_groups_end():
    hits = Hits(hybrid(window=20, window_block=16, full_block=48))
    assert hits.unit == 48
    everything = present(*range(20))
    assert hits.longest([Found(2), Found(0, everything)], 0, 300) == 96
    assert hits.longest([Found(5), Found(0, present(*range(6)))], 0, 300) == 96


def test_a_drafters_group_needs_one_block_beyond_the_hit():
    """Its KV of a block's last token depends on the token after it."""
    assert Hits(FULL, frozenset({0})).longest([Found(4)], 0, 300) == 48
    hits = Hits(hybrid(window=17), frozenset({1}))
    assert hits.longest([Found(9), Found(0, present(4, 5))], 0, 300) == 5 * 16
    assert hits.longest([Found(9), Found(0, present(4))], 0, 300) == 0


def test_one_question_for_each_group_in_the_scopes_of_all_ranks():
    who = identity(
        group(FullAttentionSpec(block_size=32), "full"),
        group(SlidingWindowSpec(block_size=16), "window"),
        tensor_parallel_size=2,
    )
    hashes = FakeRequest("r", 100).block_hashes
    full, window = Hits(who).questions("", hashes)
    assert full.keys == (hashes[1], hashes[3], hashes[5])
    assert window.keys == tuple(hashes)
    assert (full.presence, window.presence) == (False, True)
    assert full.scopes == who.scopes("", 0) != window.scopes == who.scopes("", 1)
    assert len(full.scopes) == 2


@given(
    there=st.lists(st.booleans(), min_size=12, max_size=12),
    count=st.integers(0, 12),
    window=st.integers(2, 120),
    local=st.integers(0, 8),
    tokens=st.integers(1, 220),
    proof=st.booleans(),
)
def test_no_longer_prefix_could_be_restored_and_this_one_can(there, count, window, local, tokens, proof):
    hits = Hits(hybrid(window=window), frozenset({1}) if proof else frozenset())

    def restorable(blocks: int) -> bool:
        first = max(local, max(0, blocks * 16 - window + 1) // 16)
        need = range(first, blocks + proof)
        return blocks <= count and blocks * 16 < tokens and all(at < 12 and there[at] for at in need)

    best = max((blocks for blocks in range(local + 1, 13) if restorable(blocks)), default=local)
    assert hits.longest([Found(count), Found(0, bytes(there))], local * 16, tokens) == best * 16
