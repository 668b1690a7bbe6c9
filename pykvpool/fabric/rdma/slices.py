"""Operations cut into slices: what one work request carries.

A slice is a stretch of remote memory within one chunk (it has one key there), and the local memory for it: either
registered pieces, or plain memory that goes through a slot. Slices know nothing of queue pairs: any lane may take any
slice, and take it again after another lane broke.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from pykvpool.errors import GpuFailed, PoolError, invariant
from pykvpool.fabric.base import Read, Write
from pykvpool.fabric.rdma.local_memory import BORROW_BYTES, LocalMemory
from pykvpool.fabric.rdma.registration import Registration
from pykvpool.fabric.rdma.staging import LARGE_SLOT_BYTES, Slot
from pykvpool.fabric.verbs import Access
from pykvpool.memory.copying import pinned
from pykvpool.memory.device import DevicePiece, Piece

#: Most bytes of one slice: enough that the work for it is lost in the transfer (1 MiB takes 20 us at 400 Gbit/s), small
#: enough that lanes share a large operation evenly and that little is repeated when one breaks.
SLICE_BYTES = 1024 * 1024


@dataclass(slots=True, eq=False)
class Call:
    """The operations of one batch on one mount."""

    #: Done when every slice has ended.
    done: asyncio.Future[None]
    #: Slices that have not ended; of those, how many wait to be posted, and how many a card may be working on.
    left: int = 0
    waiting: int = 0
    under_way: int = 0
    #: The caller gave it up: its memory is not touched any more once nothing is under way, which is when this is done.
    given_up: asyncio.Future[None] | None = None


@dataclass(slots=True, eq=False)
class Item:
    """One operation of a call."""

    #: Its place in the caller's batch.
    index: int
    operation: Read | Write
    call: Call
    #: Slices that have not ended; 1 until it is cut.
    left: int = 1
    #: Why it failed; the first reason counts.
    error: PoolError | None = None
    #: Slices of it, of a write, that were posted, did not end well, and may still land for all we know.
    in_doubt: int = 0

    @property
    def is_write(self) -> bool:
        return isinstance(self.operation, Write)

    @property
    def is_summed(self) -> bool:
        """A checksum is wanted, and a CPU can see the bytes: nothing of it is GPU memory."""
        return self.operation.want_checksum and not self.operation.device


@dataclass(slots=True, eq=False)
class Part:
    """Registered local memory."""

    address: int
    length: int
    registration: Registration


@dataclass(slots=True, eq=False)
class Slice:
    item: Item
    #: Within the segment.
    offset: int
    length: int = 0
    #: Registered local memory, in order; empty where the slice is staged.
    parts: list[Part] = field(default_factory=list)
    #: Local memory that is copied; empty where it is not.
    staged: list[memoryview] = field(default_factory=list)
    #: Where it is copied to or from, while the slice is under way.
    slot: Slot | None = None
    #: Times that it was refused, and times that the way was lost, while it was the oldest on its lane.
    refusals: int = 0
    lost_lanes: int = 0


@dataclass(slots=True)
class Shape:
    """What limits a slice."""

    #: Of the remote mount: no slice crosses from one chunk to the next.
    chunk_bytes: int
    #: Pieces that every queue pair takes.
    max_pieces: int


@dataclass(slots=True)
class Cut:
    """The slices of some items, and what was registered for them alone."""

    slices: list[Slice] = field(default_factory=list)
    borrowed: list[Registration] = field(default_factory=list)
    #: Registrations of the user's buffers that they use; values mean nothing.
    kept: dict[Registration, None] = field(default_factory=dict)


def cut(items: list[Item], shape: Shape, memory: LocalMemory) -> Cut:
    """Cut every item, and say in each how many slices it has. Raises `GpuFailed`: GPU memory that nobody registered."""
    result = Cut()
    try:
        for item in items:
            before = len(result.slices)
            result.slices += _slices(item, shape, memory, result)
            item.left = len(result.slices) - before
    except GpuFailed:
        memory.give_back(result.borrowed)
        raise
    return result


def _slices(item: Item, shape: Shape, memory: LocalMemory, result: Cut) -> Iterator[Slice]:
    growing: Slice | None = None
    offset = item.operation.offset
    for piece in item.operation.device or item.operation.pieces:
        length = piece.nbytes
        if not length:
            continue
        address, registration = _locate(piece, item, memory, result)
        done = 0
        while done < length:
            if growing is not None and not _may_grow(growing, registration, shape):
                yield growing
                growing = None
            if growing is None:
                growing = Slice(item, offset)
            room = _room(growing, registration, shape, address + done)
            count = min(length - done, room)
            if registration is not None:
                growing.parts.append(Part(address + done, count, registration))
            else:
                part = piece if count == length else piece[done : done + count]
                invariant(isinstance(part, memoryview), "GPU memory is registered, or was staged before it came here")
                growing.staged.append(cast("memoryview", part))
            growing.length += count
            done += count
            offset += count
    if growing is not None:
        yield growing


def _locate(piece: Piece, item: Item, memory: LocalMemory, result: Cut) -> tuple[int, Registration | None]:
    """Where a piece is, and its registration; None: it is staged."""
    if isinstance(piece, DevicePiece):
        registration: Registration | None = memory.find_device(piece)
        result.kept[cast("Registration", registration)] = None
        return piece.address, registration
    with pinned(piece) as address:
        pass  # the piece itself keeps its buffer in place for as long as the operation lives
    registration = memory.find(address, piece.nbytes)
    if registration is not None:
        result.kept[registration] = None
    elif piece.nbytes >= BORROW_BYTES:
        registration = memory.borrow(address, piece.nbytes, Access.NONE if item.is_write else Access.LOCAL_WRITE)
        if registration is not None:
            result.borrowed.append(registration)
    return address, registration


def _may_grow(growing: Slice, registration: Registration | None, shape: Shape) -> bool:
    """Whether more memory of that sort can be added."""
    at_chunk_end = (growing.offset + growing.length) % shape.chunk_bytes == 0
    if registration is None:
        return not growing.parts and growing.length < LARGE_SLOT_BYTES and not at_chunk_end
    return (
        not growing.staged
        and len(growing.parts) < shape.max_pieces
        and growing.length < SLICE_BYTES
        and not at_chunk_end
    )


def _room(growing: Slice, registration: Registration | None, shape: Shape, address: int) -> int:
    """Bytes that can be added to a slice from `address` on."""
    end = growing.offset + growing.length
    room = shape.chunk_bytes - end % shape.chunk_bytes
    if registration is None:
        return min(room, LARGE_SLOT_BYTES - growing.length)
    return min(room, SLICE_BYTES - growing.length, registration.room(address))
