"""GPU memory registered with a NIC: the way that works is tried once, remembered, and said in the log.

One `GpuRegions` belongs to one protection domain, as registrations do. It is asked about a piece of GPU memory; where
the piece lies in a range that the user registered, the *whole* range is registered with the NIC, by the first of
`cuda_paths.ways_for` that the NIC takes, in chunks below the device's limit. Memory that nobody registered is not
tried: registering takes milliseconds, and nothing says that it stays.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

from pykvpool.errors import GpuFailed
from pykvpool.fabric.verbs.model import Access, Piece
from pykvpool.fabric.verbs.protocol import MemoryRegion, ProtectionDomain, VerbsError
from pykvpool.memory.cuda import GpuMemory, RegisteredGpu
from pykvpool.memory.cuda_paths import Way, has_peer_memory, page_range, ways_for
from pykvpool.memory.device import DevicePiece

_log = logging.getLogger("pykvpool.fabric.gpu")
#: What a piece of an operation may do locally: the NIC writes to it when it reads from the pool.
_LOCAL = Access.LOCAL_WRITE
#: Registrations begin and end at multiples of this, the size of a GPU's pages, wherever the range is long enough.
_GPU_PAGE_BYTES = 64 << 10

OF_NOBODY = "this memory was not registered (client.register)"


@dataclass(frozen=True, slots=True)
class _Direct:
    """A range that the NIC reaches."""

    way: Way
    #: In rising order of address, without gaps.
    regions: tuple[MemoryRegion, ...]


class GpuRegions:
    """The GPU memory that one protection domain knows."""

    def __init__(
        self, domain: ProtectionDomain, device: str, max_mr_bytes: int, gpu: GpuMemory, peer_memory: bool | None = None
    ) -> None:
        """`max_mr_bytes`: the largest region that the device takes. `peer_memory`: None looks at this host."""
        self._domain = domain
        self._device = device
        self._chunk_bytes = max(_GPU_PAGE_BYTES, max_mr_bytes // _GPU_PAGE_BYTES * _GPU_PAGE_BYTES)
        self._gpu = gpu
        self._peer_memory = has_peer_memory() if peer_memory is None else peer_memory
        #: By registration: how the NIC reaches it, or why it does not.
        self._known: dict[RegisteredGpu, _Direct | str] = {}
        self._unwatch = gpu.watch(self.forget)

    def obstacle(self, piece: DevicePiece) -> str | None:
        """Why the NIC cannot move this piece by itself; None: it can. Registers its range at the first question.

        The piece's GPU must be in use (`GpuMemory.device`).
        """
        registered = self._gpu.find(piece)
        if registered is None:
            return OF_NOBODY
        known = self._registered(registered)
        return known if isinstance(known, str) else None

    def path(self, piece: DevicePiece) -> str:
        """How it does, for people."""
        registered = self._gpu.find(piece)
        known = None if registered is None else self._known.get(registered)
        return f"{self._device} by {known.way}" if isinstance(known, _Direct) else f"not by {self._device}"

    def pieces(self, piece: DevicePiece) -> list[Piece]:
        """A piece without an obstacle as local pieces of work requests, in order: more than one at a seam of regions.

        Raises `GpuFailed` where there is an obstacle after all.
        """
        registered = self._gpu.find(piece)
        known = None if registered is None else self._known.get(registered)
        if not isinstance(known, _Direct):
            raise GpuFailed(f"{self._device} has no registration for the GPU memory at {piece.address:#x}")
        return list(_cut(piece, known.regions))

    def forget(self, registered: RegisteredGpu) -> None:
        """Give a range's registration back. Nothing may be under way in it. Harmless for one that is not known."""
        known = self._known.pop(registered, None)
        if isinstance(known, _Direct):
            for region in known.regions:
                region.close()

    def close(self) -> None:
        """Give all registrations back, before the domain is closed. Harmless twice."""
        self._unwatch()
        for registered in list(self._known):
            self.forget(registered)

    def _registered(self, registered: RegisteredGpu) -> _Direct | str:
        known = self._known.get(registered)
        if known is None:
            known = self._known[registered] = self._try(registered)
            where = f"GPU {registered.facts.ordinal} ({registered.facts.name})"
            if isinstance(known, _Direct):
                _log.info("%s: %s reaches its memory by itself, by %s", where, self._device, known.way)
            else:
                _log.info("%s: %s does not reach its memory, which is staged: %s", where, self._device, known)
        return known

    def _try(self, registered: RegisteredGpu) -> _Direct | str:
        ways = ways_for(registered.facts, registered.allocation, self._peer_memory)
        obstacles = list(ways.obstacles)
        for way in ways.usable:
            regions: list[MemoryRegion] = []
            try:
                for address, size_bytes in self._chunks(registered):
                    regions.append(self._register(way, registered.facts.ordinal, address, size_bytes))
            except (VerbsError, GpuFailed) as error:
                for region in regions:
                    region.close()
                obstacles.append(f"{way}: {error.message}")
            else:
                return _Direct(way, tuple(regions))
        return "; ".join(obstacles)

    def _chunks(self, registered: RegisteredGpu) -> Iterator[tuple[int, int]]:
        address, end = registered.address, registered.piece.end
        while address < end:
            seam = (address + self._chunk_bytes) // _GPU_PAGE_BYTES * _GPU_PAGE_BYTES
            yield address, min(seam, end) - address
            address = seam

    def _register(self, way: Way, ordinal: int, address: int, size_bytes: int) -> MemoryRegion:
        if way is Way.PEER_MEMORY:
            return self._domain.register(address, size_bytes, _LOCAL)
        pages = page_range(address, size_bytes)
        with self._gpu.driver.current(ordinal):
            fd = self._gpu.driver.export_dma_buf(pages.address, pages.size_bytes)
        try:
            return self._domain.register_dmabuf(fd, pages.offset, size_bytes, address, _LOCAL)
        finally:
            os.close(fd)  # the registration holds the buffer by itself


def _cut(piece: DevicePiece, regions: tuple[MemoryRegion, ...]) -> Iterator[Piece]:
    for region in regions:
        start = max(piece.address, region.address)
        end = min(piece.end, region.address + region.length)
        if start < end:
            yield Piece(start, end - start, region.lkey)
