"""A peer's map of one mount: the memory, the control word that says whether it may still be used, what uses it now."""

from __future__ import annotations

import contextlib
import mmap
import os

from pykvpool.errors import InvalidArgument, PoolError, ProtocolError, Unavailable
from pykvpool.fabric.base import Peer, Read, Write
from pykvpool.fabric.exports import gone
from pykvpool.fabric.local import InFlight
from pykvpool.fabric.packet_socket import Packet
from pykvpool.fabric.shm_wire import CONTROL_BYTES, CONTROL_WORD, Mapped
from pykvpool.model.ids import Generation


class ShmMap:
    """Implements `pykvpool.fabric.local.LocalMemory`."""

    def __init__(self, generation: Generation, memory: mmap.mmap, control: mmap.mmap) -> None:
        self.generation = generation
        self._memory: mmap.mmap | None = memory
        self._control: mmap.mmap | None = control
        self.in_flight = InFlight()
        #: Why it must not be used any more; None: it may.
        self._retired: PoolError | None = None

    @classmethod
    def of(cls, message: Mapped, packet: Packet, peer: Peer) -> ShmMap:
        """Map what came beside `message`. Closes the descriptors. Raises `ProtocolError` or `Unavailable`."""
        try:
            if len(packet.descriptors) != 2:
                raise ProtocolError(f"{len(packet.descriptors)} descriptors came with a map: two are due")
            data, control = packet.descriptors
            if os.fstat(data).st_size < message.size_bytes or os.fstat(control).st_size < CONTROL_BYTES:
                raise ProtocolError("shared memory is smaller than its owner says")
            access = mmap.ACCESS_WRITE if peer.writable else mmap.ACCESS_READ
            memory = mmap.mmap(data, message.size_bytes, access=access)
            # A forked child must not keep a map that the owner believes to be gone with this process.
            memory.madvise(mmap.MADV_DONTFORK)
            return cls(message.generation, memory, mmap.mmap(control, CONTROL_BYTES, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise Unavailable(f"cannot map shared memory: {error}") from error
        finally:
            packet.close_descriptors()

    @property
    def view(self) -> memoryview:
        if self._memory is None:
            raise self._retired or gone(self.generation)
        return memoryview(self._memory)

    def refuse(self, operation: Read | Write) -> PoolError | None:
        size = 0 if self._memory is None else len(self._memory)
        if operation.offset + operation.length > size or operation.offset < 0 or operation.length < 0:
            return InvalidArgument(
                f"{operation.length} bytes at offset {operation.offset} are outside the segment of {size} bytes",
                offset=operation.offset,
                length=operation.length,
            )
        return None

    def check(self) -> None:
        """Raises `SegmentGone` from the moment on that the owner has withdrawn the generation."""
        if self._retired is not None:
            raise self._retired
        if self._control is None or CONTROL_WORD.unpack_from(self._control)[0] != self.generation:
            raise gone(self.generation)

    async def retire(self, reason: PoolError) -> None:
        """Use it no more; returns when copies under way have ended and the map is dropped.

        Read-only views that somebody still holds keep the pages, but nothing can be written any more.
        """
        self._retired = self._retired or reason
        await self.in_flight.end(reason)
        for held in (self._memory, self._control):
            if held is not None:
                with contextlib.suppress(BufferError):
                    held.close()
        self._memory = self._control = None
