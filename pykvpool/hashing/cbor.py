"""Canonical CBOR (RFC 8949, section 4.2.1) of the few types that are ever hashed.

Block hashes and fingerprints need one byte string per value, the same in every process and language: shortest heads,
shortest floats, no indefinite lengths. That subset is small, so the pool carries it instead of a dependency; the tests
compare it with `cbor2`'s canonical form. It only encodes: nothing here is ever decoded.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import TypeAlias

from pykvpool.errors import InvalidArgument

#: What may be hashed. Lists and tuples are the same array.
HashValue: TypeAlias = "bool | int | float | str | bytes | Sequence[HashValue] | None"

#: Integers go up to the widest CBOR head; beyond lie bignum tags, which no hash input of ours needs.
MAX_INTEGER = 2**64 - 1

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY = 0x00, 0x20, 0x40, 0x60, 0x80
_FALSE, _TRUE, _NULL = b"\xf4", b"\xf5", b"\xf6"
#: The one NaN of canonical CBOR.
_NAN = b"\xf9\x7e\x00"
#: Heads of the integers that fit two bytes, by value: nearly all of a token's work is one look-up here.
_SMALL = tuple(bytes([n]) if n < 24 else bytes([24, n]) for n in range(256))


def encode(value: HashValue) -> bytes:
    """Canonical CBOR of `value`.

    Raises `InvalidArgument` for a type outside `HashValue`, an integer beyond 64 bits or text that is not Unicode.
    """
    if type(value) is int and 0 <= value < 256:
        return _SMALL[value]
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int):
        return _head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value)
    if isinstance(value, bytes):
        return _head(_BYTES, len(value)) + value
    if isinstance(value, str):
        text = _utf8(value)
        return _head(_TEXT, len(text)) + text
    if isinstance(value, tuple | list):
        return _head(_ARRAY, len(value)) + b"".join([encode(item) for item in value])
    if isinstance(value, float):
        return _float(value)
    raise InvalidArgument(f"a {type(value).__name__} cannot be hashed: use None, bool, int, float, str, bytes or tuple")


def encode_block(parent: bytes, tokens: Sequence[int], extra: HashValue) -> bytes:
    """``encode((parent, tokens, extra))``, with the tokens (all of them non-negative in practice) on a short path."""
    small = _SMALL
    items = [small[token] if 0 <= token < 256 else _integer(token) for token in tokens]
    return b"".join((b"\x83", encode(parent), _head(_ARRAY, len(items)), *items, encode(extra)))


def _integer(value: int) -> bytes:
    if 0x100 <= value < 0x1_0000:
        return b"\x19" + value.to_bytes(2, "big")
    if 0x1_0000 <= value < 0x1_0000_0000:
        return b"\x1a" + value.to_bytes(4, "big")
    return encode(value)


def _head(major: int, argument: int) -> bytes:
    """The shortest head of a major type (already shifted) and its argument."""
    if argument < 24:
        return bytes([major | argument])
    for additional, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 1 << (8 * size):
            return bytes([major | additional]) + argument.to_bytes(size, "big")
    raise InvalidArgument(f"an integer beyond 64 bits cannot be hashed: at most {MAX_INTEGER} is allowed")


def _float(value: float) -> bytes:
    """The shortest of half, single and double that keeps `value` exactly."""
    if math.isnan(value):
        return _NAN
    for marker, form in ((b"\xf9", ">e"), (b"\xfa", ">f")):
        try:
            packed = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, packed)[0] == value:
            return marker + packed
    return b"\xfb" + struct.pack(">d", value)


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument(f"{text[:40]!r} cannot be hashed: it is not valid Unicode text") from None
