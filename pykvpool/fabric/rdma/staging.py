"""Slots: registered memory of our own, for bytes that lie in memory which is not worth registering.

Registering a small buffer for one transfer costs more than copying it; so small pieces are gathered into a slot before
a write, and scattered from it after a read. Slots come in two sizes, so that many tiny operations can be under way at
once. There are only so many: who finds none waits until one comes back.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pykvpool.errors import invariant
from pykvpool.memory.copying import copy_pieces, pinned

#: Most bytes of one staged slice: a copy of it takes some 20 us on the loop.
LARGE_SLOT_BYTES = 256 * 1024
LARGE_SLOTS = 16
#: Room for one small operation; a block of metadata, or a short tail.
SMALL_SLOT_BYTES = 4096
SMALL_SLOTS = 256
#: Where the small reads land that follow writes and prove that they landed. Nobody looks at it.
SCRATCH_BYTES = mmap.PAGESIZE
ARENA_BYTES = SCRATCH_BYTES + LARGE_SLOTS * LARGE_SLOT_BYTES + SMALL_SLOTS * SMALL_SLOT_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    address: int
    view: memoryview

    def gather(self, pieces: Sequence[memoryview], length: int) -> None:
        """Copy `pieces`, of `length` bytes together, into the slot."""
        copy_pieces([self.view[:length]], pieces, want_checksum=False)

    def scatter(self, pieces: Sequence[memoryview], length: int) -> None:
        """The way back."""
        copy_pieces(pieces, [self.view[:length]], want_checksum=False)


class Staging:
    """The slots of one client, in one stretch of memory from `address` on."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, ARENA_BYTES)
        self._whole = memoryview(self._map)
        with pinned(self._whole, writable=True) as address:
            self.address = address
        offset = SCRATCH_BYTES
        self._large = self._cut(offset, LARGE_SLOT_BYTES, LARGE_SLOTS)
        self._small = self._cut(offset + LARGE_SLOTS * LARGE_SLOT_BYTES, SMALL_SLOT_BYTES, SMALL_SLOTS)
        #: Who found no slot and is called once when one comes back; values mean nothing.
        self._starving: dict[Callable[[], None], None] = {}

    @property
    def scratch_address(self) -> int:
        return self.address

    def take(self, length: int) -> Slot | None:
        """A slot for `length` bytes, None while there is none."""
        invariant(length <= LARGE_SLOT_BYTES, "a staged slice fits a slot")
        if length <= SMALL_SLOT_BYTES and self._small:
            return self._small.pop()
        return self._large.pop() if self._large else None

    def give_back(self, slot: Slot) -> None:
        """No card touches it any more."""
        (self._small if slot.view.nbytes == SMALL_SLOT_BYTES else self._large).append(slot)
        starving, self._starving = self._starving, {}
        for wake in starving:
            asyncio.get_running_loop().call_soon(wake)

    def call_when_free(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, soon after the next slot has come back."""
        self._starving[wake] = None

    def close(self) -> None:
        """All slots are back, and nothing is registered."""
        for slot in (*self._large, *self._small):
            slot.view.release()
        self._large, self._small = [], []
        self._whole.release()
        self._map.close()

    def _cut(self, offset: int, size_bytes: int, count: int) -> list[Slot]:
        return [
            Slot(self.address + start, self._whole[start : start + size_bytes])
            for start in range(offset, offset + count * size_bytes, size_bytes)
        ]
