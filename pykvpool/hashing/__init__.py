"""From tokens to keys: the names under which an engine's blocks are known to the pool.

Read in this order: `algorithms` (what is hashed, and how), `extras` (what besides tokens names a block), `blocks` (the
chain), then `fingerprint` (what shapes a block's bytes) and `store_keys` (the one builder of scopes and keys). Nothing
here does I/O or knows a clock; equal input gives equal output in every process, whatever its hash seed.
"""

from pykvpool.hashing.algorithms import ALGORITHMS, DEFAULT_SEED, Algorithm
from pykvpool.hashing.blocks import BlockHasher, HashChain
from pykvpool.hashing.extras import NO_EXTRAS, HashExtras, LoraAdapter, MultiModalItem, PromptEmbeds
from pykvpool.hashing.fingerprint import FingerprintParts, GroupLayout, KVLayout, ParallelLayout, split_fingerprint
from pykvpool.hashing.store_keys import KeyBuilder, Rank, format_scope, parse_scope

__all__ = [
    "ALGORITHMS",
    "DEFAULT_SEED",
    "NO_EXTRAS",
    "Algorithm",
    "BlockHasher",
    "FingerprintParts",
    "GroupLayout",
    "HashChain",
    "HashExtras",
    "KVLayout",
    "KeyBuilder",
    "LoraAdapter",
    "MultiModalItem",
    "ParallelLayout",
    "PromptEmbeds",
    "Rank",
    "format_scope",
    "parse_scope",
    "split_fingerprint",
]
