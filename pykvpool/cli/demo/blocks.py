"""Bytes that say whose they are: the stand-in for KV, cheap to make and impossible to take for another block's.

The bytes of a block follow from its hash alone, as real KV follows from the tokens and those before. A checker that
knows the hash therefore knows every byte, whoever computed the block. They are a window of one pseudo-random sheet, so
that a shift shows, with a stamp (hash and page number) at the head of each page, so that another block, another page or
a page of another block shows. Making or checking a block costs about one copy of it; no numpy.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

#: Bytes after which a stamp follows: no transfer in the pool works in smaller parts than this.
PAGE_BYTES = 4096
#: Windows begin at any multiple of this within the first part of the sheet.
WINDOW_STEP_BYTES = 64
#: Number of different windows. Two blocks with the same one still differ in every stamp.
WINDOWS = 4096


@lru_cache(maxsize=4)
def _sheet(block_bytes: int) -> bytes:
    """Pseudo-random bytes, long enough for every window of `block_bytes`."""
    return hashlib.shake_128(b"pykvpool demo").digest(WINDOWS * WINDOW_STEP_BYTES + block_bytes)


def block_content(block_hash: bytes, block_bytes: int) -> bytearray:
    """The bytes of the block `block_hash`, always the same; the caller owns them."""
    start = int.from_bytes(block_hash[:8], "little") % WINDOWS * WINDOW_STEP_BYTES
    content = bytearray(_sheet(block_bytes)[start : start + block_bytes])
    for page, offset in enumerate(range(0, block_bytes, PAGE_BYTES)):
        stamp = block_hash + page.to_bytes(4, "little")
        end = min(offset + len(stamp), block_bytes)
        content[offset:end] = stamp[: end - offset]
    return content


def is_block(data: memoryview, block_hash: bytes) -> bool:
    """Whether `data` (format "B") is exactly the block `block_hash`, every byte of it."""
    # bytearray first: its == is one memcmp over any buffer, that of memoryview goes item by item.
    return block_content(block_hash, len(data)) == data
