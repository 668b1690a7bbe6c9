"""The memory through which block bytes pass between an engine's process and the node, seen from both ends.

It is a memfd that the engine's process makes, sealed so that no map of it can ever fault. The engine's end reads and
writes it by file offset: one `preadv` or `pwritev` moves up to a thousand pieces between it and the tensors, with the
interpreter's lock given up once, and an address that is wrong is an error, not a crash. The node's end maps it and
decides what is where.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import fcntl
import mmap
import os
from array import array
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pykvpool.errors import LimitExceeded, ProtocolError, TransferFailed, Unavailable
from pykvpool.host.agent.wire import MAX_RING_BYTES
from pykvpool.host.port import BlockGroup

#: Pieces of one system call (IOV_MAX of Linux).
MAX_PIECES = 1024
#: Places begin at multiples of this: a cache line.
ALIGNMENT_BYTES = 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

_libc = ctypes.CDLL(None, use_errno=True)
_ARGUMENTS = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_preadv, _pwritev = _libc.preadv, _libc.pwritev
for _call in (_preadv, _pwritev):
    _call.argtypes = _ARGUMENTS
    _call.restype = ctypes.c_ssize_t


def places_of(group: BlockGroup, positions: Sequence[int]) -> array[int]:
    """Address and length of every piece of these blocks, in order, as `preadv` takes them."""
    places = array("Q")
    end = -1
    for position in positions:
        block = group.block_ids[position]
        for run in group.runs:
            address = run.base + block * run.stride
            if address == end:
                places[-1] += run.length
            else:
                places.extend((address, run.length))
            end = address + run.length
    return places


class RingFile:
    """The engine's end."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.fd = os.memfd_create("pykvpool-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.size_bytes)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)

    def read_into(self, places: array[int], offset: int) -> None:
        """Copy from the ring to the places. Raises `TransferFailed`; then they may be partly written."""
        self._move(_preadv, places, offset)

    def write_from(self, places: array[int], offset: int) -> None:
        """Copy from the places to the ring. Raises `TransferFailed`."""
        self._move(_pwritev, places, offset)

    def close(self) -> None:
        """Harmless twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _move(self, call: Callable[..., int], places: array[int], offset: int) -> None:
        base, _ = places.buffer_info()
        first, count = 0, len(places) // 2
        if offset < 0 or offset + sum(places[1::2]) > self.size_bytes:
            raise TransferFailed(f"a place at {offset} does not lie within the ring of {self.size_bytes} bytes")
        while first < count:
            moved = call(self.fd, base + first * 16, min(count - first, MAX_PIECES), offset)
            if moved <= 0:
                reason = os.strerror(ctypes.get_errno()) if moved < 0 else "nothing was moved"
                raise TransferFailed(f"the copy between the ring and the engine's memory failed: {reason}")
            offset += moved
            while moved:  # it may end within a piece
                part = min(moved, places[2 * first + 1])
                moved -= part
                places[2 * first] += part
                places[2 * first + 1] -= part
                first += not places[2 * first + 1]


class RingMap:
    """The node's end: the memory, and who has which part of it."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        """Maps the memory; the descriptor stays the caller's. Raises `ProtocolError` for what is no ring."""
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            if seals & _SEALS != _SEALS or not 0 < size_bytes <= MAX_RING_BYTES or os.fstat(fd).st_size < size_bytes:
                raise ProtocolError(f"the ring is not sealed memory of {size_bytes} bytes")
            self._map = mmap.mmap(fd, size_bytes)
        except (OSError, ValueError) as error:
            raise ProtocolError(f"the ring cannot be mapped: {error}") from error
        self.size_bytes = size_bytes
        self._view: memoryview | None = memoryview(self._map)
        #: Free parts, (offset, length), in order of offset, never adjacent.
        self._free: list[tuple[int, int]] = [(0, size_bytes)]
        #: Who waits for a place, in order: bytes of a block, most blocks, what is told. Cancelled ones are skipped.
        self._waiting: collections.deque[tuple[int, int, asyncio.Future[Place]]] = collections.deque()

    def view(self, offset: int, length: int) -> memoryview:
        if self._view is None:
            raise Unavailable("the engine's process is gone")
        return self._view[offset : offset + length]

    async def take(self, block_bytes: int, blocks: int) -> Place:
        """A place for one to `blocks` blocks, as many as find room together; waits in turn for one. `give_back` it.

        Raises `LimitExceeded` for a block beyond the ring.
        """
        if block_bytes > self.size_bytes:
            raise LimitExceeded(
                f"a block of {block_bytes} bytes does not fit the ring of {self.size_bytes}", limit=self.size_bytes
            )
        if not self._waiting and self._has(block_bytes):
            return self._cut(block_bytes, blocks)
        turn: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiting.append((block_bytes, blocks, turn))
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give_back(turn.result())
            self._wake()
            raise

    def give_back(self, place: Place) -> None:
        """The place is free again."""
        insort(self._free, (place.offset, place.length))
        merged: list[tuple[int, int]] = []
        for offset, length in self._free:
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((offset, length))
        self._free = merged
        self._wake()

    def close(self) -> None:
        """Whoever uses it has ended before."""
        if self._view is not None:
            self._view.release()
            self._view = None
            with contextlib.suppress(BufferError):  # a view that lives on keeps the memory until it goes
                self._map.close()

    def _has(self, length: int) -> bool:
        return any(free >= length for _, free in self._free)

    def _cut(self, block_bytes: int, blocks: int) -> Place:
        """The smallest part that takes all, else the largest there is."""
        wanted = block_bytes * blocks
        fitting = [part for part in self._free if part[1] >= wanted]
        offset, free = min(fitting, key=lambda part: part[1]) if fitting else max(self._free, key=lambda part: part[1])
        count = min(blocks, free // block_bytes)
        length = min(free, -(-count * block_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        self._free.remove((offset, free))
        if length < free:
            insort(self._free, (offset + length, free - length))
        return Place(offset, length, count)

    def _wake(self) -> None:
        """Serve the first in line, as long as there is room for it."""
        while self._waiting:
            block_bytes, blocks, turn = self._waiting[0]
            if not turn.done():
                if not self._has(block_bytes):
                    return
                turn.set_result(self._cut(block_bytes, blocks))
            self._waiting.popleft()


@dataclass(frozen=True, slots=True)
class Place:
    """A part of the ring."""

    offset: int
    length: int
    #: How many blocks it is for.
    blocks: int
