"""GPU memory registered with a card (GPUDirect): the way that works is found once and kept.

Only ranges that the user registered are tried: registering takes milliseconds, and nothing says that other memory stays
where it is. A range is registered *whole*, by the first of `cuda_paths.ways_for` that the card takes, in chunks below
its limit. What no way leads to is no failure: `pykvpool.fabric.device_mover` stages it, when it is told the obstacle.

A GPU's addresses are like any others to a card once they are registered, so that everything after that (`slices`,
`lane`) treats both sorts of memory alike.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from pykvpool.errors import GpuFailed, PoolError
from pykvpool.fabric.rdma.rails import Device
from pykvpool.fabric.rdma.registration import Leaving, Registration, forget_all, register_chunks
from pykvpool.fabric.verbs import MemoryRegion, ProtectionDomain, VerbsError
from pykvpool.memory.cuda import GpuMemory, RegisteredGpu
from pykvpool.memory.cuda_paths import Way, has_peer_memory, page_range, ways_for
from pykvpool.memory.device import DevicePiece

_log = logging.getLogger("pykvpool.fabric.gpu")

OF_NOBODY = "this memory was not registered (client.register)"
#: Gives the domain of a client on a device.
DomainOf = Callable[[Device], ProtectionDomain]


class GpuRegistration(Registration):
    """A registered range of GPU memory."""

    def __init__(self, registered: RegisteredGpu, chunk: int, gpu: GpuMemory, peer_memory: bool) -> None:
        super().__init__(registered.address, registered.size_bytes, chunk)
        self.registered = registered
        self._gpu = gpu
        self._peer_memory = peer_memory
        #: By device name: how it reaches the range.
        self.ways: dict[str, Way] = {}

    def _register(self, device: Device, domain: ProtectionDomain) -> list[MemoryRegion]:
        """Raises `GpuFailed`, with every way that was tried."""
        ways = ways_for(self.registered.facts, self.registered.allocation, self._peer_memory)
        obstacles = list(ways.obstacles)
        for way in ways.usable:
            try:
                if way is Way.DMA_BUF:
                    regions = self._export(domain)
                else:
                    regions = register_chunks(domain, self.address, self.size_bytes, self._chunk, self._access)
            except PoolError as error:
                obstacles.append(f"{way}: {error.message}")
            else:
                self.ways[device.name] = way
                return regions
        raise GpuFailed("; ".join(obstacles))

    def _export(self, domain: ProtectionDomain) -> list[MemoryRegion]:
        """Chunk by chunk; nothing stays registered where one is refused."""
        regions: list[MemoryRegion] = []
        try:
            for offset in range(0, self.size_bytes, self._chunk):
                size_bytes = min(self._chunk, self.size_bytes - offset)
                regions.append(self._export_chunk(domain, self.address + offset, size_bytes))
        except (VerbsError, GpuFailed):
            for region in regions:
                region.close()
            raise
        return regions

    def _export_chunk(self, domain: ProtectionDomain, address: int, size_bytes: int) -> MemoryRegion:
        pages = page_range(address, size_bytes)
        with self._gpu.driver.current(self.registered.facts.ordinal):
            fd = self._gpu.driver.export_dma_buf(pages.address, pages.size_bytes)
        try:
            return domain.register_dmabuf(fd, pages.offset, size_bytes, address, self._access)
        finally:
            os.close(fd)  # the registration holds the buffer by itself


class GpuRegistrations:
    """The ranges of GPU memory that one client's cards know, or could not be told of."""

    def __init__(
        self, gpu: GpuMemory, chunk_of: Callable[[int], int], domain_of: DomainOf, *, peer_memory: bool | None = None
    ) -> None:
        """`chunk_of`: the chunk for a range of so many bytes. `peer_memory`: None looks at this host."""
        self._gpu = gpu
        self._chunk_of = chunk_of
        self._domain_of = domain_of
        self._peer_memory = has_peer_memory() if peer_memory is None else peer_memory
        self._kept: dict[RegisteredGpu, GpuRegistration] = {}
        self._leaving = Leaving()
        #: Why a device does not reach a range.
        self._obstacles: dict[tuple[RegisteredGpu, str], str] = {}
        self._unwatch = gpu.watch(self._on_unregister)

    def obstacle(self, piece: DevicePiece, devices: Sequence[Device]) -> str | None:
        """Why not every one of `devices` reaches `piece`; None: they do. Registers its range where it is not yet.

        The piece's GPU must be in use (`GpuMemory.device`).
        """
        registered = self._gpu.find(piece)
        if registered is None:
            return OF_NOBODY
        for device in devices:
            known = self._obstacles.get((registered, device.name))
            if known is None:
                known = self._try(registered, device)
            if known is not None:
                return known
        return None

    def path(self, piece: DevicePiece) -> str:
        """How it is reached, for people: ``mlx5_0 by dma-buf``."""
        kept = self._find(piece)
        ways = {} if kept is None else kept.ways
        return ", ".join(f"{device} by {way}" for device, way in ways.items()) or "not yet"

    def find(self, piece: DevicePiece) -> GpuRegistration:
        """The registration that holds `piece`. Raises `GpuFailed`: it has gone since it was asked for."""
        kept = self._find(piece)
        if kept is None:
            raise GpuFailed(f"the GPU memory at {piece.address:#x} was unregistered while it was to be used")
        return kept

    def detach(self, device: Device) -> None:
        """The device is about to be closed."""
        for kept in self._kept.values():
            kept.ways.pop(device.name, None)
        forget_all((*self._kept.values(), *self._leaving), device)
        self._obstacles = {key: why for key, why in self._obstacles.items() if key[1] != device.name}

    def close(self) -> None:
        """Every device is detached."""
        self._unwatch()
        self._kept.clear()

    def _find(self, piece: DevicePiece) -> GpuRegistration | None:
        registered = self._gpu.find(piece)
        return None if registered is None else self._kept.get(registered)

    def _try(self, registered: RegisteredGpu, device: Device) -> str | None:
        """Why the device does not reach the range, None: it does."""
        kept = self._kept.get(registered)
        if kept is None:
            chunk = self._chunk_of(registered.size_bytes)
            kept = self._kept[registered] = GpuRegistration(registered, chunk, self._gpu, self._peer_memory)
        if device.name in kept.ways:
            return None
        where = f"GPU {registered.facts.ordinal} ({registered.facts.name})"
        try:
            kept.regions(device, self._domain_of(device))
        except PoolError as error:
            obstacle = f"{device.name}: {error.message}"
            self._obstacles[registered, device.name] = obstacle
            _log.debug("%s: its memory is out of reach of %s", where, obstacle)
            return obstacle
        _log.debug("%s: %s reaches its memory by %s", where, device.name, kept.ways[device.name])
        return None

    def _on_unregister(self, registered: RegisteredGpu) -> None:
        kept = self._kept.pop(registered, None)
        if kept is not None:
            self._leaving.retire(kept)
        self._obstacles = {key: why for key, why in self._obstacles.items() if key[0] is not registered}
