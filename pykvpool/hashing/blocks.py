"""Chained block hashes: a block's hash depends on every token before it.

Tokens are cut into blocks of `block_size`; only full blocks have a hash, made from the hash of the block before, the
tokens, and the extra keys. So one hash names a whole prefix, and two engines that agree on algorithm, seed and block
size agree on every name. Where vLLM hashes in several calls, it looks at the last multimodal item only in a block that
generated tokens complete; we look at all of them always, so that a chain does not depend on how its tokens arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index

from pykvpool.errors import InvalidArgument
from pykvpool.hashing.algorithms import algorithm_named
from pykvpool.hashing.extras import NO_EXTRAS, HashExtras


class BlockHasher:
    """Hashes token blocks as a vLLM engine with the same algorithm, seed and block size does.

    Args:
        algorithm: ``sha256``, ``sha256_cbor``, ``xxhash`` or ``xxhash_cbor`` (vLLM's --prefix-caching-hash-algo).
        seed: the value of PYTHONHASHSEED in the engines, None where it is not set. The xxhash algorithms refuse None.
        block_size: tokens per hashed block.

    Raises:
        InvalidArgument: unknown algorithm, missing seed, block size below 1.
    """

    def __init__(self, algorithm: str, seed: str | None, block_size: int) -> None:
        if block_size < 1:
            raise InvalidArgument(f"a block has at least one token, not {block_size}")
        self.algorithm = algorithm_named(algorithm)
        self.block_size = block_size
        self._none_hash = self.algorithm.first_hash(seed)

    @property
    def none_hash(self) -> bytes:
        """Parent of first blocks (vLLM's NONE_HASH)."""
        return self._none_hash

    def chain(self, extras: HashExtras = NO_EXTRAS) -> HashChain:
        """A chain to which tokens are added as they come."""
        return HashChain(self, extras)

    def hash_tokens(self, tokens: Iterable[int], extras: HashExtras = NO_EXTRAS) -> list[bytes]:
        """Hashes of all full blocks of `tokens`, first block first; tokens that fill no block have none.

        Raises `InvalidArgument` where a token is not an integer.
        """
        return self.chain(extras).extend(tokens)


class HashChain:
    """The growing chain of one request."""

    def __init__(self, hasher: BlockHasher, extras: HashExtras = NO_EXTRAS) -> None:
        self._hasher = hasher
        self._extras = extras
        #: Hash of every full block so far, in order.
        self._hashes: list[bytes] = []
        #: Tokens after the last full block: fewer than `block_size` between calls.
        self._pending: list[int] = []

    @property
    def hashes(self) -> Sequence[bytes]:
        """Hashes of all full blocks so far. Do not change it."""
        return self._hashes

    @property
    def pending_tokens(self) -> int:
        """Tokens that do not fill a block yet."""
        return len(self._pending)

    def extend(self, tokens: Iterable[int]) -> list[bytes]:
        """Add tokens; returns the hashes of the blocks that became full, in order.

        Raises `InvalidArgument`, and changes nothing, where a token is not an integer.
        """
        size = self._hasher.block_size
        hash_block = self._hasher.algorithm.hash_block
        buffered = self._pending + _plain_integers(tokens)
        full = len(buffered) // size * size
        parent = self._hashes[-1] if self._hashes else self._hasher.none_hash
        start = len(self._hashes) * size
        new: list[bytes] = []
        for at in range(0, full, size):
            extra = self._extras.keys(start + at, start + at + size)
            parent = hash_block(parent, tuple(buffered[at : at + size]), extra)
            new.append(parent)
        self._hashes += new
        self._pending = buffered[full:]
        return new


def _plain_integers(tokens: Iterable[int]) -> list[int]:
    """Tokens as built-in ints: a numpy integer or a bool would be pickled otherwise and give another hash."""
    try:
        return list(map(int, map(index, tokens)))
    except TypeError as error:
        raise InvalidArgument(f"tokens are integers: {error}") from None
