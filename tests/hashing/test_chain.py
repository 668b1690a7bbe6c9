"""What a chain of block hashes promises, whatever the tokens are."""

import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import InvalidArgument
from pykvpool.hashing import ALGORITHMS, BlockHasher, HashExtras, LoraAdapter, MultiModalItem

algorithms = st.sampled_from(list(ALGORITHMS))
token = st.integers(0, 200_000)
tokens = st.lists(token, min_size=1, max_size=80)
extras = st.builds(
    HashExtras,
    cache_salt=st.text(max_size=4),
    lora=st.none() | st.builds(LoraAdapter, st.text(max_size=4), st.text(max_size=4)),
    multimodal=st.lists(st.builds(MultiModalItem, st.text(max_size=3), st.integers(0, 60), st.integers(0, 30))).map(
        lambda items: tuple(sorted(items, key=lambda item: item.offset))
    ),
)


@given(algorithms, tokens, extras, st.integers(1, 9), st.lists(st.integers(0, 80), max_size=4))
def test_a_chain_does_not_depend_on_how_its_tokens_arrived(algorithm, tokens, extras, block_size, cuts) -> None:
    hasher = BlockHasher(algorithm, "s", block_size)
    chain = hasher.chain(extras)
    new = []
    for start, end in pairwise([0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]):
        new += chain.extend(tokens[start:end])
    assert new == list(chain.hashes) == hasher.hash_tokens(tokens, extras)
    assert len(new) == len(tokens) // block_size
    assert chain.pending_tokens == len(tokens) % block_size


@given(algorithms, tokens, extras, st.integers(1, 9), st.data())
def test_another_token_changes_its_block_and_every_later_one_and_none_before(
    algorithm, tokens, extras, block_size, data
) -> None:
    at = data.draw(st.integers(0, len(tokens) - 1))
    other = list(tokens)
    other[at] = data.draw(token.filter(lambda value: value != tokens[at]))
    hasher = BlockHasher(algorithm, "s", block_size)
    before, after = hasher.hash_tokens(tokens, extras), hasher.hash_tokens(other, extras)
    same = at // block_size
    assert before[:same] == after[:same]
    assert all(a != b for a, b in zip(before[same:], after[same:], strict=True))


@given(algorithms, st.lists(token, min_size=8, max_size=40), extras, st.data())
def test_another_salt_adapter_or_seed_changes_every_hash(algorithm, tokens, extras, data) -> None:
    hasher = BlockHasher(algorithm, "s", 4)
    base = hasher.hash_tokens(tokens, extras)
    salt = data.draw(st.text(max_size=4).filter(lambda text: text != extras.cache_salt))
    lora = data.draw(
        st.builds(LoraAdapter, st.text(max_size=4), st.text(max_size=4)).filter(lambda each: each != extras.lora)
    )
    others = [
        hasher.hash_tokens(tokens, HashExtras(salt, extras.lora, extras.multimodal)),
        hasher.hash_tokens(tokens, HashExtras(extras.cache_salt, lora, extras.multimodal)),
        BlockHasher(algorithm, "t", 4).hash_tokens(tokens, extras),
    ]
    for other in others:
        assert all(a != b for a, b in zip(base, other, strict=True))


@given(algorithms, st.integers(0, 15))
def test_another_image_behind_the_same_placeholders_changes_its_block_and_later_ones(algorithm, offset) -> None:
    hasher = BlockHasher(algorithm, "s", 4)
    first = hasher.hash_tokens([7] * 16, HashExtras(multimodal=(MultiModalItem("cat", offset, 1),)))
    second = hasher.hash_tokens([7] * 16, HashExtras(multimodal=(MultiModalItem("dog", offset, 1),)))
    assert [a == b for a, b in zip(first, second, strict=True)] == [block < offset // 4 for block in range(4)]


class Token:
    """An integer as numpy has them: not an int, but it has an index."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def test_tokens_of_any_integer_type_hash_alike() -> None:
    hasher = BlockHasher("sha256", None, 4)
    assert hasher.hash_tokens([Token(n) for n in (1, 0, 1, 5)]) == hasher.hash_tokens([True, False, True, 5])


@pytest.mark.parametrize("bad", [[1.5], ["1"], [None], 7])
def test_a_token_that_is_no_integer_is_refused_and_leaves_the_chain_as_it_was(bad) -> None:
    chain = BlockHasher("sha256_cbor", None, 2).chain()
    chain.extend([1, 2, 3])
    with pytest.raises(InvalidArgument, match="tokens are integers"):
        chain.extend(bad)
    assert (len(chain.hashes), chain.pending_tokens) == (1, 1)
    assert [*chain.hashes, *chain.extend([4])] == BlockHasher("sha256_cbor", None, 2).hash_tokens([1, 2, 3, 4])


def test_bad_arguments_name_what_is_allowed() -> None:
    with pytest.raises(InvalidArgument, match="sha256, sha256_cbor, xxhash, xxhash_cbor"):
        BlockHasher("md5", None, 16)
    with pytest.raises(InvalidArgument, match="at least one token"):
        BlockHasher("sha256", None, 0)
    with pytest.raises(InvalidArgument, match="rising offset"):
        HashExtras(multimodal=(MultiModalItem("a", 4, 1), MultiModalItem("b", 2, 1)))
    with pytest.raises(InvalidArgument, match="0 or more"):
        HashExtras(multimodal=(MultiModalItem("a", 4, -1),))


PROGRAM = """
import json
from pykvpool.hashing import *
layout = KVLayout(model="m", model_dtype="bfloat16", kv_dtype="bfloat16", memory_order="NHD", hash_algorithm="sha256",
    first_hash=b"x", hash_block_tokens=4,
    groups=(GroupLayout(kind="full", layers=("l.0",), block_tokens=4, kv_heads=2, key_size=8, value_size=8,
        page_bytes=256),))
extras = HashExtras("salt", LoraAdapter("n", "p"), (MultiModalItem("image", 2, 3),))
print(json.dumps([layout.fingerprint] + [
    h.hex() for name in ALGORITHMS for h in BlockHasher(name, "s", 4).hash_tokens(range(16), extras)]))
"""


def test_hashes_and_fingerprints_agree_between_processes_with_other_hash_seeds() -> None:
    answers = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", PROGRAM],
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                capture_output=True,
                check=True,
                text=True,
            ).stdout
        )
        for seed in ("0", "4711", "random")
    ]
    assert answers[0] == answers[1] == answers[2]
    assert len(set(answers[0])) == 1 + 4 * len(ALGORITHMS)
