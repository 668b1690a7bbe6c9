"""Local buffers that tell on whoever touches them after a call is over.

A call borrows a buffer; when it is over the buffer is painted, and nothing may land in it any more. A source buffer is
painted too: whatever is sent from it later carries paint, not the bytes of any key, and `PaintChecker` is shown it.
"""

from __future__ import annotations

from pykvpool_sim.checkers import Verdicts
from pykvpool_sim.fabric import Taking

#: One of each for ever: what is lent out is never handed out twice at the same time.
_PAINT = 0xDB
#: So much paint in a row is no chance: the bytes of keys are random.
_PAINT_RUN = 12


class PaintedBuffers:
    """The local memory of one client process."""

    def __init__(self, owner: str, verdicts: Verdicts) -> None:
        self._owner = owner
        self._verdicts = verdicts
        self._free: list[bytearray] = []

    def borrow(self, size_bytes: int) -> bytearray:
        """A buffer of at least that size; its contents are paint."""
        for position, buffer in enumerate(self._free):
            if len(buffer) >= size_bytes:
                del self._free[position]
                self._check(buffer)
                return buffer
        return bytearray(_painted(size_bytes))

    def give_back(self, buffer: bytearray) -> None:
        """The call is over."""
        buffer[:] = _painted(len(buffer))
        self._free.append(buffer)

    def check(self) -> None:
        for buffer in self._free:
            self._check(buffer)

    def _check(self, buffer: bytearray) -> None:
        if buffer != _painted(len(buffer)):
            self._verdicts.add("P2", f"bytes landed in a buffer of {self._owner} after its call was over")


def _painted(size_bytes: int) -> bytes:
    return bytes([_PAINT]) * size_bytes


class PaintChecker:
    """Told of what NICs take out of local buffers: nothing is sent from a buffer whose call is over (P2)."""

    def __init__(self, verdicts: Verdicts) -> None:
        self._verdicts = verdicts

    def taken(self, taking: Taking) -> None:
        """It has not landed yet, and may never: the buffer was its owner's again all the same."""
        if _painted(_PAINT_RUN) in taking.data:
            self._verdicts.add(
                "P2",
                f"a write of put {taking.put_id} by {taking.peer.name} sent from a buffer after its call was over",
                put_id=taking.put_id,
            )
