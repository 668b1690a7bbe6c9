"""Block hashes as names: two blocks share one exactly if they are the same block in the same place of the same request.

The model is a dictionary. Whatever may tell blocks apart (algorithm, seed, block size, every token up to the block's
end, salt, adapter, images) is the key; equal keys must give equal hashes, different ones different hashes. Prompts are
cut from a tiny alphabet, so that long common prefixes, and pieces that could be mistaken for one another, are the rule.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pykvpool.hashing import ALGORITHMS, BlockHasher, HashExtras, LoraAdapter, MultiModalItem
from tests.properties.budgets import budget

#: Around every width that an encoder may choose for a number.
tokens = st.sampled_from([0, 1, 23, 24, 255, 256, 257, 65_535, 65_536, 1 << 32])
prompts = st.lists(tokens, min_size=1, max_size=12)
texts = st.sampled_from(["", "a", "ab", "b"])
images = st.lists(
    st.builds(MultiModalItem, st.sampled_from(["cat", "dog"]), st.integers(0, 8), st.integers(1, 3)), max_size=2
).map(lambda items: tuple(sorted(items, key=lambda item: item.offset)))


def visible_images(images: tuple[MultiModalItem, ...], start: int, end: int) -> tuple[object, ...]:
    """What a block of tokens [start, end) shows of the images: those it overlaps, up to one that goes on beyond it."""
    seen: list[object] = []
    for image in images:
        if image.offset < end and image.offset + image.length > start:
            seen.append((image.identifier, image.offset - start))
            if image.offset + image.length > end:
                break
    return tuple(seen)


@st.composite
def requests(
    draw: st.DrawFn,
) -> tuple[str, str, int, list[int], str, tuple[str, str] | None, tuple[MultiModalItem, ...]]:
    return (
        draw(st.sampled_from(sorted(ALGORITHMS))),
        draw(st.sampled_from(["0", "1"])),
        draw(st.integers(1, 3)),
        draw(prompts),
        draw(texts),
        draw(st.none() | st.tuples(texts, texts)),
        draw(images),
    )


@budget(150)
@given(st.lists(requests(), min_size=2, max_size=12), st.data())
def test_p11_blocks_share_a_hash_exactly_if_nothing_tells_them_apart(batch: list, data: st.DataObject) -> None:
    # One request with a single thing changed is the hardest neighbour of another.
    first, other = batch[0], batch[1]
    place = data.draw(st.integers(0, len(first) - 1))
    at = data.draw(st.integers(0, len(first[3]) - 1))
    prompt = [*first[3][:at], first[3][at] ^ data.draw(st.sampled_from([1, 1, 256, 65_536])), *first[3][at + 1 :]]
    batch = [*batch, (*first[:place], other[place], *first[place + 1 :]), (*first[:3], prompt, *first[4:])]
    hash_of: dict[object, bytes] = {}
    for algorithm, seed, size, prompt, salt, lora, items in batch:
        extras = HashExtras(salt, None if lora is None else LoraAdapter(*lora), items)
        # A seen image belongs to the block that shows it, and to all later ones; earlier tokens likewise.
        shown: list[object] = []
        for number, found in enumerate(BlockHasher(algorithm, seed, size).hash_tokens(prompt, extras)):
            end = (number + 1) * size
            shown.append(visible_images(items, end - size, end))
            # The last algorithms differ in nothing but their names for the same bytes; hashes of blocks cut elsewhere
            # differ because the chain was cut elsewhere.
            block = (algorithm, seed, size, tuple(prompt[:end]), salt, lora, tuple(shown))
            assert hash_of.setdefault(block, found) == found
    by_algorithm: dict[tuple[str, bytes], object] = {}
    for block, found in hash_of.items():
        assert by_algorithm.setdefault((block[0], found), block) == block


@budget(30)
@given(st.sampled_from(sorted(ALGORITHMS)), prompts, st.integers(1, 3), st.data())
def test_p11_another_parent_changes_every_later_hash(algorithm: str, prompt: list[int], size: int, data) -> None:
    """Block by block: the same tokens after any other parent are another block, and so is all that follows."""
    name = ALGORITHMS[algorithm]
    parents = [name.hash_seed("0"), name.hash_seed("1"), data.draw(st.binary(max_size=name.digest_bytes))]
    chains: list[list[bytes]] = []
    for parent in parents:
        chain = [parent]
        for start in range(0, len(prompt), size):
            chain.append(name.hash_block(chain[-1], tuple(prompt[start : start + size]), None))
        chains.append(chain)
    for level in zip(*chains, strict=True):
        assert len(set(level)) == len(level)
    assert len({found for chain in chains for found in chain}) == sum(map(len, chains))
