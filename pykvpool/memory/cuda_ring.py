"""Pinned host memory through which GPU memory is staged: slots that are taken, used and given back.

A copy engine and a NIC both work on a slot while nobody's code runs, so the one rule is: a slot is given out again only
after whoever held it said that all of this is over. Where that cannot be known any more (the GPU's context broke with
copies under way), the ring *breaks*: its slots stay taken for ever and everybody who asks is told why.

Who asks first is served first, with all slots at once, so two transfers never wait for each other's second half.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pykvpool.errors import Closed, PoolError, invariant
from pykvpool.memory.device import DevicePiece, Piece


@dataclass(frozen=True, slots=True)
class Run:
    """A copy between GPU memory and the ring."""

    device: int
    host: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the pieces of an operation are while they are staged."""

    #: Host memory in place of every piece, in order: the caller's own, or the slots of a GPU piece.
    pieces: list[memoryview]
    #: The copies that this needs, in order.
    runs: list[Run]


@dataclass(slots=True)
class Slots:
    """Slots of a ring that somebody holds, used from the first byte on."""

    ring: StagingRing
    #: Numbers of the slots, in the order in which they are filled.
    numbers: tuple[int, ...]
    #: Bytes that were laid out already.
    filled_bytes: int = 0

    def lay_out(self, pieces: Sequence[Piece]) -> Layout:
        """Give each GPU piece the next bytes of these slots, from a fresh slot on. There must be enough of them."""
        self.filled_bytes = -(-self.filled_bytes // self.ring.slot_bytes) * self.ring.slot_bytes
        layout = Layout([], [])
        for piece in pieces:
            if isinstance(piece, memoryview):
                layout.pieces.append(piece)
                continue
            for address, view in self._next(piece.nbytes):
                layout.runs.append(Run(piece.address, address, view.nbytes))
                layout.pieces.append(view)
                piece = piece[view.nbytes :]
        return layout

    def _next(self, size_bytes: int) -> Iterator[tuple[int, memoryview]]:
        slot_bytes = self.ring.slot_bytes
        while size_bytes:
            position, offset = divmod(self.filled_bytes, slot_bytes)
            invariant(position < len(self.numbers), "a transfer asked for as many slots as it needs")
            count = min(size_bytes, slot_bytes - offset)
            yield self.ring.at(self.numbers[position] * slot_bytes + offset, count)
            self.filled_bytes += count
            size_bytes -= count


@dataclass(slots=True)
class _Waiter:
    count: int
    future: asyncio.Future[Slots] = field(repr=False)


class StagingRing:
    """Slots of `slot_bytes` in `memory` (pinned, at `address`)."""

    def __init__(self, address: int, memory: memoryview, slot_bytes: int) -> None:
        invariant(0 < slot_bytes <= memory.nbytes, "a ring has at least one slot")
        self.slot_bytes = slot_bytes
        self.slots = memory.nbytes // slot_bytes
        self._address = address
        self._memory = memory
        #: Slots that nobody holds; the one that was given back first is given out first.
        self._free = deque(range(self.slots))
        self._taken: set[int] = set()
        self._waiters: deque[_Waiter] = deque()
        #: Why no slot is given out any more.
        self._over: PoolError | None = None

    @property
    def taken(self) -> int:
        """Slots that somebody holds, or that nobody knows to be safe."""
        return len(self._taken)

    def slots_for(self, pieces: Sequence[Piece]) -> int:
        """Slots that these pieces need."""
        size_bytes = sum(piece.nbytes for piece in pieces if isinstance(piece, DevicePiece))
        return -(-size_bytes // self.slot_bytes)

    def at(self, offset: int, size_bytes: int) -> tuple[int, memoryview]:
        """A range of the ring's memory, with its address."""
        return self._address + offset, self._memory[offset : offset + size_bytes]

    async def acquire(self, count: int) -> Slots:
        """`count` slots, all at once, in the order of asking. Raises why the ring is closed or broken."""
        invariant(0 <= count <= self.slots, "a transfer never asks for more slots than there are")
        if self._over is not None:
            raise self._over
        if not self._waiters and len(self._free) >= count:
            return self._take(count)
        waiter = _Waiter(count, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._serve()  # those behind it may fit
            elif waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                self.release(waiter.future.result())
            raise

    def release(self, slots: Slots) -> None:
        """Nothing uses these slots any more: no copy, no transfer. Harmless on a broken ring, where they stay taken."""
        if isinstance(self._over, PoolError) and not isinstance(self._over, Closed):
            return
        invariant(self._taken.issuperset(slots.numbers), "slots are given back once, by who took them")
        self._taken.difference_update(slots.numbers)
        self._free.extend(slots.numbers)
        self._serve()

    def break_(self, reason: PoolError) -> None:
        """What is taken stays taken: it cannot be known that nothing uses it."""
        self._end(reason)

    def close(self) -> None:
        """Give out no more slots. Who waits is told; who holds some gives them back in their time."""
        if self._over is None:
            self._end(Closed("GPU memory is not used any more: the client is closed"))

    def _end(self, reason: PoolError) -> None:
        self._over = reason
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(reason)

    def _take(self, count: int) -> Slots:
        numbers = tuple(self._free.popleft() for _ in range(count))
        self._taken.update(numbers)
        return Slots(self, numbers)

    def _serve(self) -> None:
        while self._waiters and (self._waiters[0].future.done() or len(self._free) >= self._waiters[0].count):
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_result(self._take(waiter.count))
