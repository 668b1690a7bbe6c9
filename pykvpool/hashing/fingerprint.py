"""What shapes the bytes of a block, and its fingerprint.

A block hash says which tokens a block stands for. It does not say which model computed it, in which type, for which
heads, in which memory order: the same prompt under another dtype has the same hashes and other bytes (vLLM PR#56971).
`KVLayout` states all of that in types; its fingerprint becomes part of every key, so that engines share blocks exactly
when their bytes mean the same. Whatever is unknown stays empty, and empty differs from every value.

The fingerprint is SHA-256 over canonical CBOR of every field by name: equal in every process and on every Python. A new
field, or another meaning of one, raises `FINGERPRINT_VERSION`, which changes every fingerprint: blocks kept by an
older version are then simply not found. The first hash of the block chains stands behind a dot, hashed by itself: who
sees two fingerprints that differ in it alone knows of engines that could share everything, and share nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import NamedTuple

from pykvpool.errors import InvalidArgument
from pykvpool.hashing import cbor

#: Version of the meaning of all fields together.
FINGERPRINT_VERSION = 2
#: 128 bits: no two layouts ever meet by chance, and 32 characters still fit a log line.
FINGERPRINT_BYTES = 16
#: Of the first hash. Few of them ever meet in one family, and chains that begin with different ones differ anyhow.
FIRST_HASH_BYTES = 8
#: Between the two parts.
_DOT = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLayout:
    """One cache group: layers that share a block table. Raises `InvalidArgument` for counts that cannot be."""

    #: "full", "sliding_window", "mla", "mamba", ... in the engine's words.
    kind: str
    #: Names of the layers on all pipeline ranks, in the order in which their parts lie in a block.
    layers: tuple[str, ...]
    #: Tokens that one block of this group holds.
    block_tokens: int
    #: KV heads of the whole model, not of one rank.
    kv_heads: int
    #: Elements of one head's key, and of its value (0 where there is none, as with MLA's joint latent).
    key_size: int
    value_size: int
    #: Bytes of one layer's part of a block on one rank, padding included.
    page_bytes: int
    #: Tokens a sliding window reaches back; 0: all of them.
    window_tokens: int = 0
    #: Where it differs from `KVLayout.kv_dtype`.
    kv_dtype: str = ""

    def __post_init__(self) -> None:
        _at_least(self, 1, "block_tokens", "page_bytes")
        _at_least(self, 0, "kv_heads", "key_size", "value_size", "window_tokens")
        if not self.layers:
            raise InvalidArgument("a cache group has at least one layer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """How a block is cut over ranks. The rank itself is no part of a fingerprint but of the scope."""

    #: Different parts that the tensor-parallel ranks hold: their number, fewer where KV heads are repeated on several
    #: ranks, 1 where every rank holds the same (MLA), so that such a block is stored once for all.
    kv_shards: int = 1
    pipeline_size: int = 1
    prefill_context_size: int = 1
    decode_context_size: int = 1

    def __post_init__(self) -> None:
        _at_least(self, 1, "kv_shards", "pipeline_size", "prefill_context_size", "decode_context_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Everything that changes the bytes of a block. Raises `InvalidArgument` where a required field is empty."""

    #: Name or path of the model, and the revision of its files.
    model: str
    revision: str = ""
    #: Digest of the weights, where it is known: two folders of the same name may differ.
    weights_digest: str = ""
    #: Type in which the model computes ("bfloat16"), and how its weights are quantised ("awq", "fp8").
    model_dtype: str
    quantization: str = ""
    #: Settings that change the numbers without changing the weights (rope scaling and other overrides), as text.
    overrides: str = ""
    #: Content digest of the LoRA adapter these blocks are computed with; empty: the base model. Engines' block hashes
    #: carry an adapter's name and path only.
    adapter: str = ""
    #: Model whose draft layers lie in the same blocks, with its settings.
    speculator: str = ""
    #: Type of the cache ("bfloat16", "fp8_e4m3"), and a digest of its scales where they are calibrated.
    kv_dtype: str
    kv_scales_digest: str = ""
    #: Order of a block's dimensions, in the engine's words ("HND", "NHD"), and whether key and value are joined.
    memory_order: str
    #: Version of how the engine's connector packs layers into an object.
    packing: str = ""
    groups: tuple[GroupLayout, ...]
    parallel: ParallelLayout = field(default_factory=ParallelLayout)
    #: Block hashes: algorithm, first hash of the chain (`BlockHasher.none_hash`) and tokens per hash.
    hash_algorithm: str
    first_hash: bytes
    hash_block_tokens: int

    def __post_init__(self) -> None:
        _at_least(self, 1, "hash_block_tokens")
        for name in ("model", "model_dtype", "kv_dtype", "memory_order", "hash_algorithm"):
            if not getattr(self, name):
                raise InvalidArgument(f"a KV layout needs its {name}: without it other bytes could pass for its own")
        if not self.groups:
            raise InvalidArgument("a KV layout has at least one cache group")
        for number, group in enumerate(self.groups):
            if group.block_tokens % self.hash_block_tokens:
                raise InvalidArgument(
                    f"group {number} has blocks of {group.block_tokens} tokens, which hashes of "
                    f"{self.hash_block_tokens} tokens do not divide"
                )

    @property
    def family(self) -> str:
        """32 hexadecimal digits that change whenever any field does but `first_hash`."""
        return _digest(_plain(replace(self, first_hash=b""))).hex()

    @property
    def fingerprint(self) -> str:
        """The family, a dot, and 16 hexadecimal digits of the first hash: changes whenever any field does."""
        return self.family + _DOT + _digest(self.first_hash)[:FIRST_HASH_BYTES].hex()


class FingerprintParts(NamedTuple):
    """A fingerprint taken apart."""

    family: str
    first_hash: str


def split_fingerprint(text: str) -> FingerprintParts | None:
    """Its parts; None where it is no fingerprint of a `KVLayout` (scopes may carry any text)."""
    family, dot, first = text.partition(_DOT)
    if not dot or len(family) != 2 * FINGERPRINT_BYTES or len(first) != 2 * FIRST_HASH_BYTES:
        return None
    return FingerprintParts(family, first)


def _digest(value: cbor.HashValue) -> bytes:
    named: cbor.HashValue = ("pykvpool kv layout", FINGERPRINT_VERSION, value)
    return hashlib.sha256(cbor.encode(named)).digest()[:FINGERPRINT_BYTES]


def _plain(value: object) -> cbor.HashValue:
    """Dataclasses as arrays of (field name, value): names keep a field from standing in for its neighbour."""
    if is_dataclass(value):
        return tuple((each.name, _plain(getattr(value, each.name))) for each in fields(value))
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, str | int | bytes):
        return value
    raise InvalidArgument(f"a {type(value).__name__} has no place in a KV layout")


def _at_least(layout: object, least: int, *names: str) -> None:
    for name in names:
        if getattr(layout, name) < least:
            raise InvalidArgument(f"{type(layout).__name__}.{name} is {getattr(layout, name)}: at least {least}")
