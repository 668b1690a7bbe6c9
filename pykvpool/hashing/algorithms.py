"""The four block-hash algorithms of vLLM, bit for bit (vllm/utils/hashing.py, 0.32.0).

A block is the triple (parent hash, tokens, extra keys or None). An algorithm is a way to write that triple as bytes
and a digest of those bytes: `sha256` and `xxhash` write pickle protocol 5, `sha256_cbor` and `xxhash_cbor` canonical
CBOR; the digests are SHA-256 (32 bytes) and XXH3-128 (16 bytes). The chain starts from the hash of a seed text.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from pykvpool.errors import InvalidArgument
from pykvpool.hashing import cbor
from pykvpool.hashing.extras import ExtraKeys

#: vLLM asks for the highest protocol, which is 5 on every Python from 3.8 on; stated here, so that it stays 5.
PICKLE_PROTOCOL = 5
#: Seed text of the sha256 algorithms where PYTHONHASHSEED is not set (vllm/v1/core/kv_cache_utils.py).
DEFAULT_SEED = "vllm-none-hash"


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How a block becomes a hash."""

    name: str
    digest_bytes: int
    #: Collision resistant: then a public seed is safe, and there is a default one.
    cryptographic: bool
    #: Hash of a seed text: the parent of first blocks.
    hash_seed: Callable[[str], bytes]
    #: Hash of (parent, tokens, extra keys). Tokens must be a tuple of plain ints.
    hash_block: Callable[[bytes, tuple[int, ...], ExtraKeys | None], bytes]

    def first_hash(self, seed: str | None) -> bytes:
        """Hash of `seed`, or of vLLM's default where it is None; raises `InvalidArgument` where there is no default."""
        if seed is not None:
            return self.hash_seed(seed)
        if self.cryptographic:
            return self.hash_seed(DEFAULT_SEED)
        raise InvalidArgument(
            f"{self.name} needs a seed: without PYTHONHASHSEED every engine process draws a random one, so that no two "
            "of them ever agree on a block hash (LMCache#1095). Set PYTHONHASHSEED to the same value everywhere and "
            "pass it here, or use sha256 or sha256_cbor, which have a common default",
            algorithm=self.name,
        )


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _xxh3_128(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


def _over_pickle(name: str, digest_bytes: int, cryptographic: bool, digest: Callable[[bytes], bytes]) -> Algorithm:
    def hash_seed(seed: str) -> bytes:
        return digest(pickle.dumps(seed, PICKLE_PROTOCOL))

    def hash_block(parent: bytes, tokens: tuple[int, ...], extra: ExtraKeys | None) -> bytes:
        return digest(pickle.dumps((parent, tokens, extra), PICKLE_PROTOCOL))

    return Algorithm(name, digest_bytes, cryptographic, hash_seed, hash_block)


def _over_cbor(name: str, digest_bytes: int, cryptographic: bool, digest: Callable[[bytes], bytes]) -> Algorithm:
    def hash_seed(seed: str) -> bytes:
        return digest(cbor.encode(seed))

    def hash_block(parent: bytes, tokens: tuple[int, ...], extra: ExtraKeys | None) -> bytes:
        return digest(cbor.encode_block(parent, tokens, extra))

    return Algorithm(name, digest_bytes, cryptographic, hash_seed, hash_block)


#: By the name that vLLM's ``--prefix-caching-hash-algo`` takes.
ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        _over_pickle("sha256", 32, True, _sha256),
        _over_cbor("sha256_cbor", 32, True, _sha256),
        _over_pickle("xxhash", 16, False, _xxh3_128),
        _over_cbor("xxhash_cbor", 16, False, _xxh3_128),
    )
}


def algorithm_named(name: str) -> Algorithm:
    """The algorithm of that name; `InvalidArgument` lists those there are."""
    algorithm = ALGORITHMS.get(name)
    if algorithm is None:
        raise InvalidArgument(f"unknown hash algorithm {name!r}: one of {', '.join(ALGORITHMS)}")
    return algorithm
