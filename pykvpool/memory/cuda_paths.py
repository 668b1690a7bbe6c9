"""Which ways a NIC could take into the memory of a GPU, best first, and why the others are no use.

Pure: from what the GPU says of itself and of the allocation, and what modules the kernel has. Whether the NIC agrees is
found out by trying (`pykvpool.fabric.rdma.gpu_memory`); what is left in the end is the staging ring.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path

from pykvpool.memory.cuda_driver import Allocation, DeviceFacts, WriteOrdering

#: Where the kernel shows modules that let a NIC register device pointers: today's, and that of older drivers.
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")


class Way(enum.StrEnum):
    DMA_BUF = "dma-buf"
    PEER_MEMORY = "peer memory"


@dataclass(frozen=True, slots=True)
class Ways:
    """What to try, in order, and the obstacles to what is not tried."""

    usable: tuple[Way, ...]
    obstacles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PageRange:
    """A range widened to whole pages of the host, as an export wants it."""

    address: int
    size_bytes: int
    #: Where the range that was meant begins in it.
    offset: int


def ways_for(facts: DeviceFacts, allocation: Allocation, peer_memory: bool) -> Ways:
    """The ways into `allocation`, which is on the GPU of `facts`."""
    obstacle = _no_direct(facts, allocation)
    if obstacle is not None:
        return Ways((), (obstacle,))
    usable: list[Way] = []
    obstacles: list[str] = []
    if facts.dma_buf:
        usable.append(Way.DMA_BUF)
    else:
        obstacles.append("the driver exports no dma-buf (it needs the open kernel modules, 515 or newer)")
    if peer_memory:
        usable.append(Way.PEER_MEMORY)
    else:
        obstacles.append("the kernel module nvidia-peermem is not loaded")
    return Ways(tuple(usable), tuple(obstacles))


def _no_direct(facts: DeviceFacts, allocation: Allocation) -> str | None:
    """Why no NIC may reach this memory, whatever the way."""
    if not facts.direct:
        return f"{facts.name} does not support GPUDirect RDMA"
    if allocation.managed:
        return "managed memory moves between host and GPU"
    if not allocation.direct:
        return "the memory was allocated without leave for GPUDirect (cuMemCreate's gpuDirectRDMACapable)"
    if facts.ordering < WriteOrdering.OWNER and not facts.can_flush:
        return f"{facts.name} can neither order nor flush what a NIC writes: a kernel might see old bytes"
    return None


def page_range(address: int, size_bytes: int, page_bytes: int = os.sysconf("SC_PAGE_SIZE")) -> PageRange:
    """The smallest run of whole pages that holds the range."""
    start = address // page_bytes * page_bytes
    end = -(-(address + size_bytes) // page_bytes) * page_bytes
    return PageRange(start, end - start, address - start)


def has_peer_memory(root: Path = Path("/")) -> bool:
    """Whether a module for the older way is loaded."""
    return any((root / "sys" / "module" / module).exists() for module in PEER_MODULES)
