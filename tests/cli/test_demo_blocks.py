"""Blocks that say whose they are, and the engine's own cache."""

from __future__ import annotations

import hashlib

import pytest

from pykvpool.cli.demo.blocks import PAGE_BYTES, block_content, is_block
from pykvpool.cli.demo.engine_cache import EngineCache
from pykvpool.errors import InvalidArgument

SIZES = [1, 31, 36, 100, PAGE_BYTES, PAGE_BYTES + 1, 4 * PAGE_BYTES]


def a_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_block_is_recognised_and_every_changed_byte_is_seen(size_bytes: int) -> None:
    content = block_content(a_hash("a"), size_bytes)
    assert len(content) == size_bytes
    assert is_block(memoryview(content), a_hash("a"))
    for position in {0, size_bytes // 2, size_bytes - 1}:
        content[position] ^= 1
        assert not is_block(memoryview(content), a_hash("a"))
        content[position] ^= 1


def test_pages_of_other_blocks_and_swapped_pages_are_seen() -> None:
    size_bytes = 4 * PAGE_BYTES
    one = block_content(a_hash("a"), size_bytes)
    other = block_content(a_hash("b"), size_bytes)
    torn = one[: 2 * PAGE_BYTES] + other[2 * PAGE_BYTES :]
    assert not is_block(memoryview(torn), a_hash("a"))
    assert not is_block(memoryview(torn), a_hash("b"))
    swapped = one[PAGE_BYTES : 2 * PAGE_BYTES] + one[:PAGE_BYTES] + one[2 * PAGE_BYTES :]
    assert not is_block(memoryview(swapped), a_hash("a"))


def test_blocks_that_share_a_window_of_the_sheet_still_differ_in_every_page() -> None:
    one, other = a_hash("a"), a_hash("a")[:8] + a_hash("b")[8:]
    contents = [block_content(block_hash, 2 * PAGE_BYTES) for block_hash in (one, other)]
    for page in range(2):
        at = slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
        assert contents[0][at] != contents[1][at]


def chain(name: str, length: int) -> list[bytes]:
    return [a_hash(f"{name}/{position}") for position in range(length)]


def test_a_prompt_that_was_here_is_matched_from_its_beginning() -> None:
    cache = EngineCache(8)
    prompt = chain("a", 4)
    assert cache.match(prompt) == 0
    slots = cache.take(prompt)
    assert len(set(slots)) == 4
    assert cache.match([*prompt, a_hash("new")]) == 4
    assert cache.take(prompt) == slots


def test_the_oldest_prompt_goes_first_and_from_its_tail() -> None:
    cache = EngineCache(8)
    cache.take(chain("a", 4))
    cache.take(chain("b", 4))
    cache.take(chain("c", 2))
    assert [cache.match(chain(name, length)) for name, length in (("a", 4), ("b", 4), ("c", 2))] == [2, 4, 2]


def test_a_prompt_never_evicts_its_own_blocks() -> None:
    cache = EngineCache(4)
    cache.take(chain("a", 4))
    longer = [*chain("a", 2), *chain("x", 2)]
    assert len(set(cache.take(longer))) == 4
    assert cache.match(longer) == 4
    with pytest.raises(InvalidArgument, match="5 blocks does not fit into an engine of 4"):
        cache.take(chain("b", 5))


def test_a_forgotten_block_gives_its_slot_back() -> None:
    cache = EngineCache(2)
    first, second = chain("a", 2)
    slots = cache.take([first, second])
    cache.forget(second)
    assert cache.match([first, second]) == 1
    assert cache.take([a_hash("new")]) == [slots[1]]
    cache.clear()
    assert cache.match([first]) == 0
    assert sorted(cache.take(chain("b", 2))) == [0, 1]


def test_an_engine_without_memory_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least one"):
        EngineCache(0)
