"""An engine's own prefix cache: which blocks its bounded memory holds, least recently used first out.

It knows slots (numbers of equal places in the engine's memory) and block hashes; the bytes are the engine's business.
As in vLLM the tail of a prompt goes before its head, so that what is left of a chain is always its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pykvpool.errors import InvalidArgument


class EngineCache:
    """LRU over prefix blocks in `slots` slots."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise InvalidArgument(f"an engine's cache of {slots} blocks holds nothing: at least one is needed")
        #: hash -> slot, least recently used first. Every slot is either here or in `_free`.
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(slots - 1, -1, -1))
        self.capacity = slots

    def match(self, hashes: Sequence[bytes]) -> int:
        """How many of the first `hashes` are here."""
        count = 0
        for block_hash in hashes:
            if block_hash not in self._slots:
                break
            count += 1
        return count

    def take(self, hashes: Sequence[bytes]) -> list[int]:
        """Slots for all of `hashes`, in order: their own where they are here, else a free or the oldest one's.

        The whole prompt becomes most recently used, its tail the oldest of it. The caller fills the slots of blocks
        that were not here, and calls `forget` for any that it could not fill. Raises `InvalidArgument` where the
        prompt has more blocks than there are slots.
        """
        if len(hashes) > self.capacity:
            raise InvalidArgument(
                f"a prompt of {len(hashes)} blocks does not fit into an engine of {self.capacity}",
                blocks=len(hashes),
                limit=self.capacity,
            )
        for block_hash in hashes:
            if block_hash in self._slots:
                self._slots.move_to_end(block_hash)
        taken = []
        for block_hash in hashes:
            slot = self._slots.get(block_hash)
            if slot is None:
                slot = self._free.pop() if self._free else self._slots.popitem(last=False)[1]
                self._slots[block_hash] = slot
            taken.append(slot)
        for block_hash in reversed(hashes):
            self._slots.move_to_end(block_hash)
        return taken

    def forget(self, block_hash: bytes) -> None:
        """Free the slot of a block that is not there after all."""
        self._free.append(self._slots.pop(block_hash))

    def clear(self) -> None:
        """Forget everything."""
        self._free += self._slots.values()
        self._slots.clear()
