"""Layouts that differ in anything never share a key; equal ones always do."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import InvalidArgument
from pykvpool.hashing import GroupLayout, KVLayout, ParallelLayout, split_fingerprint

GROUP = GroupLayout(
    kind="full", layers=("model.0", "model.1"), block_tokens=16, kv_heads=2, key_size=32, value_size=32, page_bytes=4096
)
LAYOUT = KVLayout(
    model="org/model",
    model_dtype="bfloat16",
    kv_dtype="bfloat16",
    memory_order="NHD",
    groups=(GROUP, replace(GROUP, kind="sliding_window", window_tokens=1024)),
    hash_algorithm="sha256",
    first_hash=b"first",
    hash_block_tokens=16,
)


def other_values(value: object) -> list[object]:
    if isinstance(value, str):
        return [value + "x"]
    if isinstance(value, bytes):
        return [value + b"x", b""]
    if isinstance(value, int):
        return [value * 16 if value else 1]
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return [(*value, "more"), value[:-1], tuple(reversed(value))]
    raise AssertionError(f"say how to change {value!r}")


def variants() -> list[tuple[str, KVLayout]]:
    """LAYOUT with one field changed, every field of every part."""
    found: list[tuple[str, KVLayout]] = []
    for each in fields(KVLayout):
        value = getattr(LAYOUT, each.name)
        if each.name == "hash_block_tokens":
            found.append((each.name, replace(LAYOUT, hash_block_tokens=8)))
        elif each.name == "parallel":
            for inner in fields(ParallelLayout):
                changed = replace(value, **{inner.name: getattr(value, inner.name) + 1})
                found.append((f"parallel.{inner.name}", replace(LAYOUT, parallel=changed)))
        elif each.name == "groups":
            found.append(("fewer groups", replace(LAYOUT, groups=value[:1])))
            found.append(("groups in another order", replace(LAYOUT, groups=value[::-1])))
            for inner in fields(GroupLayout):
                for other in other_values(getattr(GROUP, inner.name)):
                    groups = (replace(GROUP, **{inner.name: other}), value[1])
                    found.append((f"groups.{inner.name}", replace(LAYOUT, groups=groups)))
        else:
            found += [(each.name, replace(LAYOUT, **{each.name: other})) for other in other_values(value)]
    return found


def test_any_field_changes_the_fingerprint_and_no_two_changes_agree() -> None:
    changed = variants()
    names = {name.split(".")[0] for name, _ in changed} | {"groups"}
    assert names >= {each.name for each in fields(KVLayout)}
    prints = [layout.fingerprint for _, layout in changed]
    assert LAYOUT.fingerprint not in prints
    assert len(set(prints)) == len(prints)


texts = st.text("ab", max_size=2)


@given(texts, texts, texts, texts)
def test_fingerprints_are_equal_exactly_when_layouts_are(revision, weights, other_revision, other_weights) -> None:
    """Text that moves from one field to its neighbour is another layout."""
    one = replace(LAYOUT, revision=revision, weights_digest=weights)
    other = replace(LAYOUT, revision=other_revision, weights_digest=other_weights)
    assert (one == other) == (one.fingerprint == other.fingerprint)


def test_the_fingerprint_is_stable_across_releases() -> None:
    """It is in the keys of every block that a pool holds. Where this changes, raise FINGERPRINT_VERSION."""
    assert LAYOUT.fingerprint == "c78269241f2882addd7ecd41fbaf918e.0ad08c7956216b4e"


def test_layouts_that_differ_in_the_first_hash_alone_are_one_family() -> None:
    seeded = replace(LAYOUT, first_hash=b"other")
    assert seeded.family == LAYOUT.family
    assert seeded.fingerprint != LAYOUT.fingerprint
    for name, layout in variants():
        assert (layout.family == LAYOUT.family) == (name == "first_hash"), name
    parts = split_fingerprint(seeded.fingerprint)
    assert parts is not None
    assert parts.family == LAYOUT.family


@pytest.mark.parametrize("text", ["", "fp", "a.b", "9950bc9e259d44bda85086de02aa7485", LAYOUT.fingerprint + "0"])
def test_other_text_in_a_scope_is_no_fingerprint_of_a_layout(text: str) -> None:
    assert split_fingerprint(text) is None


@pytest.mark.parametrize("name", ["model", "model_dtype", "kv_dtype", "memory_order", "hash_algorithm"])
def test_what_must_be_known_cannot_be_left_empty(name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        replace(LAYOUT, **{name: ""})


def test_impossible_layouts_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="do not divide"):
        replace(LAYOUT, hash_block_tokens=5)
    with pytest.raises(InvalidArgument, match="at least one cache group"):
        replace(LAYOUT, groups=())
    with pytest.raises(InvalidArgument, match="at least one layer"):
        replace(GROUP, layers=())
    with pytest.raises(InvalidArgument, match=r"page_bytes is 0: at least 1"):
        replace(GROUP, page_bytes=0)
    with pytest.raises(InvalidArgument, match=r"kv_shards is 0"):
        ParallelLayout(kv_shards=0)
