"""The client's own memory as the cards see it: what is registered, what is worth registering, what is staged instead.

- A buffer that the user registered with the client is registered with a card at its first transfer and stays so until
  the user takes it back.
- A large piece of other memory is registered for the length of one call (`Borrowed`): the address may mean other pages
  tomorrow, so nothing of it is kept.
- Ranges of a GPU that the user registered are in `gpu_memory`.
- Everything else is copied through `staging`; so is what a device refuses to register.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from pykvpool.errors import GpuFailed, PoolError
from pykvpool.fabric.rdma.gpu_memory import GpuRegistrations
from pykvpool.fabric.rdma.rails import Device
from pykvpool.fabric.rdma.registration import Leaving, Registration, chunk_bytes, forget_all
from pykvpool.fabric.rdma.staging import ARENA_BYTES, Staging
from pykvpool.fabric.verbs import Access, Piece, ProtectionDomain
from pykvpool.memory.buffers import BufferRegistry, RegisteredBuffer
from pykvpool.memory.cuda import GpuMemory
from pykvpool.memory.device import DevicePiece
from pykvpool.memory.locked import LockedMemory

log = logging.getLogger("pykvpool.fabric.rdma")

#: A piece of at least this size is registered for its call. Pinning its pages takes about as long as copying it, but
#: not the memory bus twice, and not the slots that small pieces need.
BORROW_BYTES = 256 * 1024


class LocalMemory:
    """Registrations of one client, on the devices that were attached."""

    def __init__(
        self, buffers: BufferRegistry | None, gpu: GpuMemory | None, locked: Callable[[], LockedMemory]
    ) -> None:
        self.staging = Staging()
        #: GPU memory; None: there is none.
        self.gpu = None if gpu is None else GpuRegistrations(gpu, self._chunk, self.domain)
        self._arena: Registration | None = None
        self._domains: dict[Device, ProtectionDomain] = {}
        #: How much may be locked.
        self._locked = locked
        #: What the user registered; None: nothing can be.
        self._buffers = buffers
        #: Address of a registered buffer -> what we made of it.
        self._kept: dict[int, Registration] = {}
        #: Addresses of registered buffers that a device does not take; values mean nothing.
        self._refused: dict[int, None] = {}
        #: Borrowings of calls under way, which a device must let go of before it is closed. Values mean nothing.
        self._borrowed: dict[Registration, None] = {}
        self._leaving = Leaving()
        #: A refusal was logged: it would be for every call.
        self._complained = False
        if buffers is not None:
            buffers.watch(self._on_unregister)

    @property
    def attached(self) -> list[Device]:
        return list(self._domains)

    @property
    def arena(self) -> Registration:
        """The memory of the slots."""
        if self._arena is None:
            self._arena = Registration(self.staging.address, ARENA_BYTES, self._chunk(ARENA_BYTES))
        return self._arena

    def domain(self, device: Device) -> ProtectionDomain:
        """Where this client's queue pairs on a device belong; made, with the slots registered, at first use.

        Raises `PoolError` where the device refuses.
        """
        domain = self._domains.get(device)
        if domain is None:
            domain = device.context.protection_domain()
            self._domains[device] = domain
            try:
                self.arena.regions(device, domain)
            except BaseException:
                self.detach(device)
                raise
        return domain

    def piece(self, registration: Registration, device: Device, address: int, length: int) -> Piece:
        """Registered memory as requests to an attached device name it. Raises `PoolError`: refused there."""
        return registration.piece(device, self._domains[device], address, length)

    def find(self, address: int, length: int) -> Registration | None:
        """The registration of the user's buffer that holds these bytes, if one does and every device takes it."""
        holder = None if self._buffers is None else self._buffers.holder(address, length)
        if holder is None:
            return None
        kept = self._kept.get(holder.address)
        if kept is None and holder.address in self._refused:
            return None
        if kept is None:
            kept = Registration(holder.address, holder.size_bytes, self._chunk(holder.size_bytes))
            self._kept[holder.address] = kept
        missing = [device for device in self._domains if not kept.is_registered_with(device)]
        if not missing or self._register(kept, missing):
            return kept
        self._refused[holder.address] = None
        del self._kept[holder.address]
        self._leaving.retire(kept)
        return None

    def _register(self, kept: Registration, devices: Sequence[Device]) -> bool:
        """A buffer of the user's with every one of these. False: it is refused, which is logged."""
        shortage = self._locked().shortage(kept.size_bytes * len(devices))
        if shortage:
            log.warning("rdma: a buffer of %d bytes is not registered with the cards: %s", kept.size_bytes, shortage)
            return False
        try:
            for device in devices:
                kept.regions(device, self._domains[device])
        except PoolError as error:
            log.warning("rdma: a buffer is not registered with the cards: %s", error)
            return False
        return True

    def find_device(self, piece: DevicePiece) -> Registration:
        """The registration of a piece of GPU memory. Raises `GpuFailed`: there is none (any more)."""
        if self.gpu is None:
            raise GpuFailed("this client has no GPU memory")
        return self.gpu.find(piece)

    def borrow(self, address: int, length: int, access: Access) -> Registration | None:
        """Register memory for one call on every attached device; None where one refuses. Give it back with
        `give_back`."""
        registration = Registration(address, length, self._chunk(length), access)
        try:
            for device, domain in self._domains.items():
                registration.regions(device, domain)
        except PoolError as error:
            self._leaving.retire(registration)
            if not self._complained:
                self._complained = True
                log.warning("rdma: %s; such memory is copied through staging buffers from now on", error)
            return None
        self._borrowed[registration] = None
        return registration

    def give_back(self, borrowed: Iterable[Registration]) -> None:
        """A call is over, and with it every transfer that used these."""
        for registration in borrowed:
            del self._borrowed[registration]
            self._leaving.retire(registration)

    def detach(self, device: Device) -> None:
        """The device is about to be closed. Raises `VerbsError` where a queue pair of ours is left on it."""
        forget_all((*self._kept.values(), *self._borrowed, *self._leaving, self.arena), device)
        if self.gpu is not None:
            self.gpu.detach(device)
        domain = self._domains.get(device)
        if domain is not None:
            device.let_go(domain.close)
            del self._domains[device]
        self._refused.clear()  # it may have been that one

    def close(self) -> None:
        """Every device is detached and every call over."""
        if self._buffers is not None:
            self._buffers.unwatch(self._on_unregister)
        self._kept.clear()
        if self.gpu is not None:
            self.gpu.close()
        self.staging.close()

    def _on_unregister(self, buffer: RegisteredBuffer) -> None:
        self._refused.pop(buffer.address, None)
        kept = self._kept.pop(buffer.address, None)
        if kept is not None:
            self._leaving.retire(kept)

    def _chunk(self, size_bytes: int) -> int:
        """Any device may come to use it, but only what fits none of the present ones is worth several keys."""
        return chunk_bytes([device.limits for device in self._domains]) if self._domains else size_bytes
