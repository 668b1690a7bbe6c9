"""A position in a run of buffers that a socket sends from or fills, with the checksums of what has passed.

It offers *windows* (what to hand to one sendmsg or recvmsg_into) and is told how many bytes moved. Sums are taken there
and then, on bytes that the kernel's copy has just brought into the cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import xxhash

from pykvpool.errors import invariant

#: Most buffers that one sendmsg or recvmsg takes (Linux: 1024).
IOV_MAX = os.sysconf("SC_IOV_MAX")


class Cursor:
    """Bytes to move, in order. Not reusable."""

    __slots__ = ("_index", "_offset", "_pieces", "_sums", "done_bytes", "total_bytes")

    def __init__(self) -> None:
        self._pieces: list[memoryview] = []
        #: The running sum that each piece belongs to, None: not summed.
        self._sums: list[xxhash.xxh3_64 | None] = []
        #: First piece that is not done, and how much of it is.
        self._index = 0
        self._offset = 0
        self.done_bytes = 0
        self.total_bytes = 0

    def add(self, pieces: Iterable[memoryview], running_sum: xxhash.xxh3_64 | None = None) -> None:
        """Append non-empty pieces; their bytes go into `running_sum` as they pass."""
        for piece in pieces:
            if piece.nbytes:
                self._pieces.append(piece)
                self._sums.append(running_sum)
                self.total_bytes += piece.nbytes

    @property
    def finished(self) -> bool:
        return self._index == len(self._pieces)

    def window(self, max_bytes: int) -> list[memoryview]:
        """The next buffers, at most `max_bytes` in all and at most `IOV_MAX`; empty when finished."""
        window: list[memoryview] = []
        offset = self._offset
        for index in range(self._index, min(self._index + IOV_MAX, len(self._pieces))):
            piece = self._pieces[index]
            part = piece if not offset and piece.nbytes <= max_bytes else piece[offset : offset + max_bytes]
            window.append(part)
            max_bytes -= part.nbytes
            offset = 0
            if not max_bytes:
                break
        return window

    def advance(self, count: int) -> None:
        """`count` bytes of the last window have moved."""
        self.done_bytes += count
        while count:
            piece = self._pieces[self._index]
            moved = min(count, piece.nbytes - self._offset)
            running_sum = self._sums[self._index]
            if running_sum is not None:
                whole = moved == piece.nbytes
                running_sum.update(piece if whole else piece[self._offset : self._offset + moved])
            count -= moved
            self._offset += moved
            if self._offset == piece.nbytes:
                self._index += 1
                self._offset = 0
        invariant(self.done_bytes <= self.total_bytes, "a socket moved more bytes than it was given")
