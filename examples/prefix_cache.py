"""What an engine does with a pool: hash the prompt, ask how much of it is known, load that, compute and save the rest.

    python examples/prefix_cache.py                       # a pool within this process
    python examples/prefix_cache.py tcp://127.0.0.1:7000  # a real one: pykvpool master, pykvpool node

Two "engines" see two turns of one conversation. The second engine never saw the first turn, and still computes only the
tokens that are new.
"""

from __future__ import annotations

import hashlib
import sys

import pykvpool
from pykvpool.client import PutItem, SyncClient
from pykvpool.errors import PoolError
from pykvpool.hashing import BlockHasher
from pykvpool.model.keys import Scope

BLOCK_TOKENS = 16
BLOCK_BYTES = 4096

#: Says whose bytes these are: equal hashes under another scope are other blocks. A real engine takes the fingerprint of
#: its KV layout (`pykvpool.hashing.KVLayout`), so that models never mix.
SCOPE = Scope("examples", "a made-up model")


def compute(block_hash: bytes) -> bytes:
    """Stands for attention: bytes that follow from the tokens alone."""
    return hashlib.shake_128(block_hash).digest(BLOCK_BYTES)


def run_turn(pool: SyncClient, engine: str, tokens: list[int]) -> None:
    """One request on one engine."""
    hashes = BlockHasher("sha256", seed="0", block_size=BLOCK_TOKENS).hash_tokens(tokens)

    # The lease of `hold` keeps what was matched from being evicted until it is loaded.
    with pool.match_prefix(hashes, [SCOPE], hold=True) as match:
        blocks = [bytearray(BLOCK_BYTES) for _ in hashes]
        pool.get_into_batch(hashes[: match.count], blocks[: match.count], scope=SCOPE)

    for index in range(match.count, len(hashes)):
        blocks[index][:] = compute(hashes[index])
    parents = [None, *hashes]
    items = [PutItem(hashes[i], blocks[i], parent=parents[i]) for i in range(match.count, len(hashes))]
    pool.put_batch(items, scope=SCOPE)

    assert all(block == compute(block_hash) for block, block_hash in zip(blocks, hashes, strict=True))
    print(f"{engine}: {len(tokens)} tokens, {match.count} blocks loaded, {len(hashes) - match.count} computed")


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "inproc://"
    with pykvpool.connect(address) as pool:
        first_turn = list(range(1000))
        run_turn(pool, "engine A", first_turn)
        run_turn(pool, "engine B", first_turn + list(range(5000, 5100)))


if __name__ == "__main__":
    try:
        main()
    except PoolError as error:
        sys.exit(f"{error.kind}: {error}")
