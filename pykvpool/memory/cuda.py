"""GPU memory, as one client uses it: whose is this pointer, when may it be used, and what stages it.

Three ways lead from a GPU to the pool. Which one is taken is decided by the NIC's fabric and by `cuda_paths`:

    dma-buf       the driver exports the range, the NIC registers it and reads and writes it itself
    peer memory   the older way: the kernel module nvidia-peermem lets the NIC register the pointer as it is
    staged        the bytes go through a ring of pinned host memory (`cuda_ring`), copied by the GPU's copy engines
                  (`cuda_copies`); any fabric carries them on

`GpuMemory` knows the driver, the memory that was registered, and one `GpuDevice` (its context, and what stages) for
each GPU that is used. It must not know fabrics: `pykvpool.fabric.device_mover` puts the two together. Nothing of CUDA
is loaded before the first piece of GPU memory comes along.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pykvpool.errors import Closed, GpuFailed, InvalidArgument, LimitExceeded, PoolError
from pykvpool.memory.buffers import BufferRegistry, RegisteredBuffer
from pykvpool.memory.copying import bytes_at
from pykvpool.memory.cuda_copies import CopyQueue, giving_back
from pykvpool.memory.cuda_driver import Allocation, DeviceFacts, Driver, WriteOrdering
from pykvpool.memory.cuda_python import load_driver
from pykvpool.memory.cuda_ring import StagingRing
from pykvpool.memory.device import DevicePiece
from pykvpool.runtime import Offload

#: Bytes of pinned memory for each GPU: two waves of 32 MiB, one copied while the other is on the network. 25 GB/s (a
#: PCIe 4 slot) moves a wave in 1.3 ms, which no hand-over between the two is noticed beside.
RING_BYTES = 64 << 20
#: A slot holds a run of one object; an object of 64 KiB wastes most of one, one of 16 MiB takes 64 copies.
SLOT_BYTES = 256 << 10
#: Looks at an engine's event that follow each other at once (the loop turns in between), then the pause between looks.
EAGER_LOOKS = 20
LOOK_AGAIN_S = 0.001
#: Most registered ranges of GPU memory.
MAX_REGISTERED = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredGpu:
    """GPU memory that a user promised to keep in place: one range within one allocation."""

    piece: DevicePiece
    allocation: Allocation
    facts: DeviceFacts

    @property
    def address(self) -> int:
        return self.piece.address

    @property
    def size_bytes(self) -> int:
        return self.piece.nbytes


class Staging:
    """The pinned ring of one GPU and the streams that copy through it."""

    def __init__(self, driver: Driver, ordinal: int, offload: Offload, ring_bytes: int, slot_bytes: int) -> None:
        """Takes tens of milliseconds (pinning memory): run it in an offload thread. Raises `GpuFailed`."""
        self._driver = driver
        self._ordinal = ordinal
        with driver.current(ordinal):
            self._pinned = driver.allocate_host(ring_bytes)
        #: The whole ring.
        self.memory = bytes_at(self._pinned, ring_bytes, driver)
        self.ring = StagingRing(self._pinned, self.memory, slot_bytes)
        try:
            self.copies = CopyQueue(driver, ordinal, offload)
        except GpuFailed:
            with driver.current(ordinal):
                driver.free_host(self._pinned)
            raise

    def broke(self, error: PoolError) -> None:
        """Copies are adrift: their slots are never used again."""
        self.ring.break_(error)

    def close(self) -> bool:
        """Give everything back that the driver takes; False where something may still use it, for ever."""
        self.ring.close()
        if self.ring.taken:
            return False  # the memory stays pinned until the process ends
        self.copies.close()
        with giving_back("pinned memory", self._ordinal), self._driver.current(self._ordinal):
            self._driver.free_host(self._pinned)
        return True


class GpuDevice:
    """One GPU in use: its context, and what stages its memory once something has to be staged."""

    def __init__(self, driver: Driver, facts: DeviceFacts) -> None:
        """Raises `GpuFailed`."""
        self.facts = facts
        self.staging: Staging | None = None
        self._driver = driver
        driver.retain(facts.ordinal)

    def flush(self) -> None:
        """What a NIC wrote into this GPU's memory is there for its kernels. Raises `GpuFailed`."""
        if self.facts.ordering < WriteOrdering.OWNER:
            with self._driver.current(self.facts.ordinal):
                self._driver.flush_writes()

    def close(self) -> None:
        """Give back what the driver takes."""
        if self.staging is None or self.staging.close():
            with giving_back("its context", self.facts.ordinal):
                self._driver.release(self.facts.ordinal)


@dataclass(slots=True)
class _Registered:
    """Registered ranges in the order of their addresses."""

    addresses: list[int] = field(default_factory=list)
    ranges: dict[int, RegisteredGpu] = field(default_factory=dict)

    def holder(self, piece: DevicePiece) -> RegisteredGpu | None:
        place = bisect_right(self.addresses, piece.address)
        found = self.ranges[self.addresses[place - 1]] if place else None
        return found if found is not None and piece.end <= found.piece.end else None

    def overlaps(self, piece: DevicePiece) -> bool:
        place = bisect_right(self.addresses, piece.address)
        before = self.ranges[self.addresses[place - 1]] if place else None
        after = self.addresses[place] if place < len(self.addresses) else None
        return (before is not None and before.piece.end > piece.address) or (after is not None and piece.end > after)


class GpuMemory:
    """All GPU memory of one client. Keyword arguments are for tests."""

    def __init__(
        self,
        offload: Offload,
        buffers: BufferRegistry | None = None,
        *,
        load: Callable[[], Driver] = load_driver,
        ring_bytes: int = RING_BYTES,
        slot_bytes: int = SLOT_BYTES,
    ) -> None:
        self._offload = offload
        #: Where rings are registered, so that NICs keep them registered; None: nowhere.
        self._buffers = buffers
        self._rings: dict[int, RegisteredBuffer] = {}
        self._load = load
        self._ring_bytes = ring_bytes
        self._slot_bytes = slot_bytes
        self._driver: Driver | None = None
        self._registered = _Registered()
        #: Told of each range that is unregistered, before its memory may go: who registered it elsewhere.
        self._watchers: dict[Callable[[RegisteredGpu], None], None] = {}
        self._facts: dict[int, DeviceFacts] = {}
        #: GPUs in use by ordinal; one opens at a time.
        self._devices: dict[int, GpuDevice] = {}
        self._opening = asyncio.Lock()
        self._closed = False

    @property
    def driver(self) -> Driver:
        """Loaded at the first use. Raises `NotSupported`: no binding, no driver or no GPU here."""
        if self._driver is None:
            self._driver = self._load()
        return self._driver

    # -- registered memory -----------------------------------------------------------------------------------------

    def register(self, piece: DevicePiece) -> RegisteredGpu:
        """Keep a range until it is unregistered; the same one again gives the same registration.

        Raises:
            InvalidArgument: not GPU memory, managed, empty, beyond its allocation, or overlapping another range.
            NotSupported, GpuFailed, LimitExceeded.
        """
        self._check_open()
        known = self._registered.ranges.get(piece.address)
        if known is not None and known.size_bytes == piece.nbytes:
            return known
        allocation = self.locate(piece)
        if len(self._registered.ranges) >= MAX_REGISTERED:
            raise LimitExceeded(f"{MAX_REGISTERED} ranges of GPU memory are registered: register larger ones")
        if self._registered.overlaps(piece):
            raise InvalidArgument(
                f"the {piece.nbytes} bytes at {piece.address:#x} overlap GPU memory that is registered already"
            )
        registered = RegisteredGpu(piece, allocation, self.facts(allocation.ordinal))
        insort(self._registered.addresses, piece.address)
        self._registered.ranges[piece.address] = registered
        return registered

    def unregister(self, registered: RegisteredGpu) -> None:
        """Forget it, and have NICs forget it. No transfer may be under way in it. Harmless twice."""
        if self._registered.ranges.get(registered.address) is registered:
            for forget in list(self._watchers):
                forget(registered)
            del self._registered.ranges[registered.address]
            self._registered.addresses.remove(registered.address)

    def watch(self, forget: Callable[[RegisteredGpu], None]) -> Callable[[], None]:
        """Have `forget` called with each range that is unregistered; returns how to end that."""
        self._watchers[forget] = None
        return lambda: self._watchers.pop(forget, None)

    def find(self, piece: DevicePiece) -> RegisteredGpu | None:
        """The registered range that holds all of `piece`."""
        return self._registered.holder(piece)

    def locate(self, piece: DevicePiece) -> Allocation:
        """The allocation that holds all of `piece`. Raises `InvalidArgument`, `NotSupported`, `GpuFailed`."""
        found = self.find(piece)
        if found is not None:
            return found.allocation
        if not piece.nbytes:
            raise InvalidArgument("an empty piece of GPU memory is nowhere")
        allocation = self._allocation_at(piece.address)
        # Memory that was mapped together from parts (PyTorch's expandable segments) is several allocations in a row.
        while allocation.end < piece.end:
            following = self.driver.locate(allocation.end)
            if following is None or following.ordinal != allocation.ordinal or following.managed:
                raise InvalidArgument(
                    f"the {piece.nbytes} bytes at {piece.address:#x} go beyond their allocation, which ends at "
                    f"{allocation.end:#x}"
                )
            allocation = allocation.joined(following)
        return allocation

    def _allocation_at(self, address: int) -> Allocation:
        allocation = self.driver.locate(address)
        if allocation is None:
            raise InvalidArgument(f"the address {address:#x} is not in the memory of a GPU")
        if allocation.managed:
            raise InvalidArgument(
                f"the address {address:#x} is managed memory, which moves between host and GPU: use cudaMalloc's"
            )
        return allocation

    def facts(self, ordinal: int) -> DeviceFacts:
        if ordinal not in self._facts:
            self._facts[ordinal] = self.driver.describe(ordinal)
        return self._facts[ordinal]

    # -- using it --------------------------------------------------------------------------------------------------

    async def device(self, ordinal: int) -> GpuDevice:
        """A GPU with its context. Raises `NotSupported`, `GpuFailed`, `Closed`."""
        async with self._opening:
            return await self._device(ordinal)

    async def staging(self, ordinal: int) -> Staging:
        """What stages a GPU's memory, made when it is first asked for. Raises as `device`."""
        async with self._opening:
            device = await self._device(ordinal)
            if device.staging is None:
                device.staging = await self._offload.run(
                    Staging, self.driver, ordinal, self._offload, self._ring_bytes, self._slot_bytes
                )
                if self._buffers is not None:
                    self._rings[ordinal] = self._buffers.register(device.staging.memory)
            return device.staging

    async def _device(self, ordinal: int) -> GpuDevice:
        self._check_open()
        if ordinal not in self._devices:
            self._devices[ordinal] = await self._offload.run(GpuDevice, self.driver, self.facts(ordinal))
        return self._devices[ordinal]

    async def load(self) -> None:
        """Load the driver away from the loop. Raises `NotSupported`."""
        if self._driver is None:
            self._driver = await self._offload.run(self._load)

    async def until_usable(self, ordinal: int, pieces: Iterable[DevicePiece]) -> Sequence[int]:
        """Wait until the engine's work on `pieces` is done. The events they named, for the copies to wait for as well.

        Nothing has begun when it is cancelled. Raises `GpuFailed`.
        """
        events = {piece.after: None for piece in pieces if piece.after is not None}
        streams = {piece.stream: None for piece in pieces if piece.after is None}
        driver = self.driver
        own: list[int] = []
        try:
            with driver.current(ordinal):
                for stream in streams:
                    own.append(driver.create_event())
                    driver.record(own[-1], stream)
            unreached, looks = [*events, *own], 0
            while unreached := self._unreached(ordinal, unreached):
                await asyncio.sleep(0 if looks < EAGER_LOOKS else LOOK_AGAIN_S)
                looks += 1
            return tuple(events)
        finally:
            with driver.current(ordinal):
                for event in own:
                    driver.destroy_event(event)

    def _unreached(self, ordinal: int, events: Sequence[int]) -> list[int]:
        with self.driver.current(ordinal):
            return [event for event in events if not self.driver.reached(event)]

    def close(self) -> None:
        """Give GPUs back; transfers must be over. Harmless twice. What a driver refuses is logged, and left to it."""
        self._closed = True
        devices, self._devices = self._devices, {}
        for ring in self._rings.values():
            if self._buffers is not None:
                self._buffers.unregister(ring)
        self._rings.clear()
        for device in devices.values():
            device.close()
        self._registered = _Registered()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("GPU memory is not used any more: the client is closed")
