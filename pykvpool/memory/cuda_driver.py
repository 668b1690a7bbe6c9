"""The seam to the GPU's driver: the two dozen calls that we make, as a protocol, and the plain values they give.

`pykvpool.memory.cuda_python` binds it to cuda-python; the unit tests bring a recording fake. Handles (streams, events,
addresses) are plain integers. Calls belong to a *context*: whoever makes one does so inside ``with current(ordinal)``,
on any thread, unless it says otherwise. None waits but `wait`, which gives the GIL up and is meant for an offload
thread. All failures are `GpuFailed`.
"""

from __future__ import annotations

import enum
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from pykvpool.errors import invariant


class WriteOrdering(enum.IntEnum):
    """CUGPUDirectRDMAWritesOrdering: who sees what a NIC wrote without a flush."""

    NONE = 0
    #: The device that was written to.
    OWNER = 100
    ALL_DEVICES = 200


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a GPU says of itself."""

    ordinal: int
    name: str
    #: Domain, bus, device, function, in lower case: ``0000:17:00.0``.
    pci_address: str
    #: Its memory can be exported as a dma-buf.
    dma_buf: bool
    #: A NIC may reach its memory at all.
    direct: bool
    ordering: WriteOrdering
    #: `Driver.flush_writes` works on it.
    can_flush: bool


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocation that an address lies in."""

    ordinal: int
    address: int
    size_bytes: int
    #: Managed memory moves between host and device as it is touched: a NIC must not be pointed at it.
    managed: bool
    #: It was allocated so that a NIC may reach it.
    direct: bool

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.size_bytes

    def joined(self, following: Allocation) -> Allocation:
        """Both as one, where `following` begins at or before this one's end and reaches beyond it."""
        invariant(following.address <= self.end < following.end, "allocations in a row have no gap")
        return replace(self, size_bytes=following.end - self.address, direct=self.direct and following.direct)


class Driver(Protocol):
    """The driver of this host's GPUs."""

    name: str
    version: str

    def device_count(self) -> int:
        """No context needed."""
        ...

    def describe(self, ordinal: int) -> DeviceFacts:
        """No context needed. Raises `GpuFailed`."""
        ...

    def locate(self, address: int) -> Allocation | None:
        """Where this pointer leads; None: not into memory of a GPU. No context needed."""
        ...

    def retain(self, ordinal: int) -> None:
        """Take part in the device's primary context, the one that frameworks use. Once before all else."""
        ...

    def release(self, ordinal: int) -> None: ...

    def current(self, ordinal: int) -> AbstractContextManager[None]:
        """Make the device's context that of this thread for the block."""
        ...

    def export_dma_buf(self, address: int, size_bytes: int) -> int:
        """A file descriptor for a range whose ends are multiples of the host's page size. The caller closes it."""
        ...

    def allocate_host(self, size_bytes: int) -> int:
        """Pinned host memory, usable by every device; its address. Takes milliseconds: the pages are faulted in."""
        ...

    def free_host(self, address: int) -> None: ...

    def create_stream(self) -> int:
        """A stream that does not synchronise with the default stream."""
        ...

    def destroy_stream(self, stream: int) -> None: ...

    def create_event(self) -> int:
        """An event that does no timing, on which a waiting thread sleeps."""
        ...

    def destroy_event(self, event: int) -> None: ...

    def record(self, event: int, stream: int) -> None:
        """The event is reached when all that is on the stream now is done."""
        ...

    def reached(self, event: int) -> bool: ...

    def wait(self, event: int) -> None:
        """Blocks the thread until the event is reached, without the GIL."""
        ...

    def stream_wait(self, stream: int, event: int) -> None:
        """What is enqueued on the stream from now on begins after the event."""
        ...

    def copy_to_host(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy into pinned memory. Done by a copy engine: no multiprocessor is used."""
        ...

    def copy_to_device(self, device: int, host: int, size_bytes: int, stream: int) -> None: ...

    def flush_writes(self) -> None:
        """Returns when what a NIC wrote into the current device's memory before is visible to it."""
        ...
