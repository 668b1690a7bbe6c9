"""The canonical subset, by the examples of RFC 8949 (appendix A) and beside cbor2 where it is installed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import InvalidArgument
from pykvpool.hashing import cbor

EXAMPLES = [
    (0, "00"),
    (23, "17"),
    (24, "1818"),
    (255, "18ff"),
    (256, "190100"),
    (65_535, "19ffff"),
    (65_536, "1a00010000"),
    (2**32, "1b0000000100000000"),
    (2**64 - 1, "1bffffffffffffffff"),
    (-1, "20"),
    (-1000, "3903e7"),
    (-(2**64), "3bffffffffffffffff"),
    (False, "f4"),
    (True, "f5"),
    (None, "f6"),
    (b"\x01\x02", "420102"),
    ("ü", "62c3bc"),
    ((), "80"),
    ([1, [2, 3]], "8201820203"),
    (0.0, "f90000"),
    (-0.0, "f98000"),
    (1.5, "f93e00"),
    (100_000.0, "fa47c35000"),
    (1.1, "fb3ff199999999999a"),
    (1e300, "fb7e37e43c8800759c"),
    (math.inf, "f97c00"),
    (-math.inf, "f9fc00"),
    (math.nan, "f97e00"),
]


@pytest.mark.parametrize(("value", "expected"), EXAMPLES)
def test_examples_of_the_standard(value, expected) -> None:
    assert cbor.encode(value).hex() == expected


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: st.lists(inner, max_size=5).map(tuple) | st.lists(inner, max_size=5),
    max_leaves=10,
)


@given(values)
def test_canonical_as_cbor2_writes_it(value) -> None:
    cbor2 = pytest.importorskip("cbor2")
    assert cbor.encode(value) == cbor2.dumps(value, canonical=True)


@given(st.binary(min_size=16, max_size=32), st.lists(st.integers(-3, 2**40), max_size=20), values)
def test_the_short_path_for_blocks_writes_the_same(parent, tokens, extra) -> None:
    assert cbor.encode_block(parent, tokens, extra) == cbor.encode((parent, tuple(tokens), extra))


@pytest.mark.parametrize("value", [2**64, -(2**64) - 1, {}, object(), (1, {2}), "\ud800"])
def test_what_cannot_be_written_is_refused(value) -> None:
    with pytest.raises(InvalidArgument, match="cannot be hashed"):
        cbor.encode(value)
