"""The keys that are written and read, and the bytes that belong to each: a function of the key, so that any wrong byte
is seen by whoever reads it, without being told what was written.

Keys form chains, as blocks of a prompt do, in a few scopes. Sizes follow from the key too: content addressed keys
never change theirs.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

from pykvpool.model.keys import Scope

#: Scopes in use: a plain one, and one as an engine has it.
SCOPES = (Scope("plain"), Scope("model", "fp8/16", "tp0", 1))
MIN_BYTES = 40
#: Most objects are up to this size; one in eight is four times as large.
COMMON_BYTES = 3_000


@functools.lru_cache(maxsize=8_192)
def value_of(scope: Scope, key: bytes) -> bytes:
    """The bytes that belong to a key."""
    seed = hashlib.sha256(f"{scope.text()}\n".encode() + key)
    digest = seed.digest()
    most = COMMON_BYTES * (4 if digest[0] % 8 == 0 else 1)
    size = MIN_BYTES + int.from_bytes(digest[1:4], "little") % (most - MIN_BYTES)
    return hashlib.shake_128(digest).digest(size)


@dataclass(frozen=True, slots=True)
class KeySpace:
    """`chains` chains of `length` keys, in every scope."""

    chains: int
    length: int

    def key(self, chain: int, index: int) -> bytes:
        return b"chain-%d/%d" % (chain, index)

    def chain(self, chain: int) -> list[bytes]:
        return [self.key(chain, index) for index in range(self.length)]

    def all(self) -> list[bytes]:
        return [key for chain in range(self.chains) for key in self.chain(chain)]

    def size_bytes(self) -> int:
        """Of one copy of everything."""
        return sum(len(value_of(scope, key)) for scope in SCOPES for key in self.all())
