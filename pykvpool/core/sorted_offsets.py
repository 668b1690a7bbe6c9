"""A sorted set of offsets that stays quick with hundreds of thousands of members.

One flat sorted list would move megabytes at every insertion; a list of short sorted lists moves at most a few KiB.
Knows nothing of what lies at an offset.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from pykvpool.errors import invariant

#: Chunks split above twice this many offsets: 8 KiB to move at worst, a few hundred chunks for 10^5 members.
CHUNK_OFFSETS = 512


class SortedOffsets:
    """Integers >= 0, each at most once. All operations cost O(log n) and one short move."""

    __slots__ = ("_chunks", "_firsts")

    def __init__(self) -> None:
        #: Non-empty sorted lists; every member of one is below every member of the next.
        self._chunks: list[list[int]] = []
        #: `_firsts[i] == _chunks[i][0]`.
        self._firsts: list[int] = []

    def add(self, offset: int) -> None:
        """Insert an offset that is not a member yet."""
        if not self._chunks:
            self._chunks.append([offset])
            self._firsts.append(offset)
            return
        i = max(bisect_right(self._firsts, offset) - 1, 0)
        chunk = self._chunks[i]
        insort(chunk, offset)
        self._firsts[i] = chunk[0]
        if len(chunk) > 2 * CHUNK_OFFSETS:
            self._chunks.insert(i + 1, chunk[CHUNK_OFFSETS:])
            self._firsts.insert(i + 1, chunk[CHUNK_OFFSETS])
            del chunk[CHUNK_OFFSETS:]

    def remove(self, offset: int) -> None:
        """Take a member out; anything else breaks an invariant."""
        i = bisect_right(self._firsts, offset) - 1
        invariant(i >= 0, "a removed offset is a member")
        chunk = self._chunks[i]
        j = bisect_left(chunk, offset)
        invariant(j < len(chunk) and chunk[j] == offset, "a removed offset is a member")
        del chunk[j]
        if chunk:
            self._firsts[i] = chunk[0]
        else:
            del self._chunks[i]
            del self._firsts[i]

    def at_or_before(self, offset: int) -> int:
        """The greatest member <= offset, or -1."""
        i = bisect_right(self._firsts, offset) - 1
        if i < 0:
            return -1
        chunk = self._chunks[i]
        return chunk[bisect_right(chunk, offset) - 1]

    def after(self, offset: int) -> int:
        """The smallest member > offset, or -1."""
        i = bisect_right(self._firsts, offset) - 1
        if i >= 0:
            chunk = self._chunks[i]
            j = bisect_right(chunk, offset)
            if j < len(chunk):
                return chunk[j]
        return self._firsts[i + 1] if i + 1 < len(self._firsts) else -1

    def __iter__(self) -> Iterator[int]:
        for chunk in self._chunks:
            yield from chunk
