"""Our block hashes are vLLM's, bit for bit.

The golden files were printed by vLLM 0.32.0: tokens 0..63 in blocks of 16, with PYTHONHASHSEED=0 and without it. The
adapter there is `adapterA` at `/x/adapterA`, the salt `abc`.
"""

import hashlib
import json
from pathlib import Path

import pytest

from pykvpool.errors import InvalidArgument
from pykvpool.hashing import (
    ALGORITHMS,
    DEFAULT_SEED,
    BlockHasher,
    HashExtras,
    LoraAdapter,
    MultiModalItem,
    PromptEmbeds,
    cbor,
)

GOLDEN = Path(__file__).parent / "golden"
FILES = ("seed_0.json", "seed_unset.json")
VARIANTS = {
    "blocks": HashExtras(),
    "blocks_cache_salt_abc": HashExtras(cache_salt="abc"),
    "blocks_lora": HashExtras(lora=LoraAdapter("adapterA", "/x/adapterA")),
}


def golden(file: str) -> dict:
    return json.loads((GOLDEN / file).read_text())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("file", FILES)
def test_blocks_hash_as_in_vllm(file: str, algorithm: str, variant: str) -> None:
    expected = golden(file)[algorithm]
    hasher = BlockHasher(algorithm, expected["seed"], 16)
    assert hasher.none_hash.hex() == expected["NONE_HASH"]
    assert [each.hex() for each in hasher.hash_tokens(range(64), VARIANTS[variant])] == expected[variant]
    assert hasher.algorithm.digest_bytes == expected["digest_len"]


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_sha256_without_a_seed_uses_the_default_every_engine_has(algorithm: str) -> None:
    expected = golden("seed_unset.json")[algorithm]
    assert expected["seed"] == DEFAULT_SEED
    assert BlockHasher(algorithm, None, 16).none_hash.hex() == expected["NONE_HASH"]


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_xxhash_without_a_seed_is_refused_with_the_reason(algorithm: str) -> None:
    with pytest.raises(InvalidArgument, match=r"random one.*Set PYTHONHASHSEED"):
        BlockHasher(algorithm, None, 16)


def test_the_bytes_under_the_hash_are_vllms_too() -> None:
    expected = golden("seed_0.json")
    assert cbor.encode("0").hex() == expected["cbor_seed_input_hex"]
    parent = bytes.fromhex(expected["sha256_cbor"]["NONE_HASH"])
    assert cbor.encode_block(parent, tuple(range(16)), None).hex() == expected["cbor_input_hex_block0"]
    assert cbor.encode((parent, tuple(range(16)), None)).hex() == expected["cbor_input_hex_block0"]


def test_extra_keys_come_in_vllms_order_and_form() -> None:
    """Read from `generate_block_hash_extra_keys`: lora, mm, cache_salt, prompt_embeds, each with its kind in front."""
    rows = bytes(range(64))
    extras = HashExtras(
        cache_salt="salt",
        lora=LoraAdapter("a", "/adapters/a"),
        multimodal=(MultiModalItem("image-1", 1, 2), MultiModalItem("image-2", 3, 6)),
        prompt_embeds=PromptEmbeds(rows, 4),
    )
    assert extras.keys(0, 4) == (
        ("lora", "a", "/adapters/a"),
        ("mm", "image-1", 1),
        ("mm", "image-2", 3),
        ("cache_salt", "salt"),
        ("prompt_embeds", hashlib.sha256(rows[:16]).digest()),
    )
    assert extras.keys(4, 8) == (
        ("lora", "a", "/adapters/a"),
        ("mm", "image-2", -1),
        ("prompt_embeds", hashlib.sha256(rows[16:32]).digest()),
    )
    assert extras.keys(40, 44)[-1] == ("prompt_embeds", hashlib.sha256(b"").digest())


def test_an_item_counts_in_every_block_it_reaches_into_and_in_no_other() -> None:
    extras = HashExtras(multimodal=(MultiModalItem("i", 6, 4),))
    assert [extras.keys(at, at + 4) for at in range(0, 16, 4)] == [None, (("mm", "i", 2),), (("mm", "i", -2),), None]


def test_the_first_item_that_goes_on_is_the_last_that_counts() -> None:
    """vLLM ends its scan there, which shows when items overlap (a video and its sound)."""
    extras = HashExtras(multimodal=(MultiModalItem("video", 0, 8), MultiModalItem("sound", 2, 2)))
    assert extras.keys(0, 4) == (("mm", "video", 0),)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_hash_does_not_depend_on_which_objects_carry_the_text(algorithm: str) -> None:
    """Pickle writes an object seen before as a reference; equal texts must still give equal hashes."""
    name = "".join(["ad", "apter"])
    twin = "".join(["ad", "apter"])
    assert name is not twin
    hasher = BlockHasher(algorithm, "0", 4)
    once = hasher.hash_tokens(range(8), HashExtras(cache_salt=name, lora=LoraAdapter(name, name)))
    twice = hasher.hash_tokens(range(8), HashExtras(cache_salt=twin, lora=LoraAdapter(name, "".join(["adap", "ter"]))))
    assert once == twice


def test_an_adapter_and_a_salt_of_the_same_text_do_not_meet() -> None:
    """vLLM#44701: untagged, a salt could name an adapter's blocks."""
    hasher = BlockHasher("sha256", None, 4)
    assert hasher.hash_tokens(range(4), HashExtras(cache_salt="x")) != hasher.hash_tokens(
        range(4), HashExtras(lora=LoraAdapter("x", ""))
    )
