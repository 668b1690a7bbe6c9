"""Memory that cards may touch: registered in chunks, on every device that uses it, and refused with the fix.

Registering pins pages and takes time with size, so it is done once where memory stays: an owner's mount, a user's
registered buffer. A device takes only so much in one registration; a larger range becomes several of equal size, each
with keys of its own. The usual refusal is the limit on locked memory, so that is what a refusal names, with the fix.
"""

from __future__ import annotations

import errno
import logging
import mmap
from collections.abc import Iterable, Iterator

from pykvpool.errors import PoolError, TransferFailed, invariant
from pykvpool.fabric.rdma.rails import Device
from pykvpool.fabric.verbs import Access, Limits, MemoryRegion, Piece, ProtectionDomain, VerbsError
from pykvpool.memory.locked import locked_memory

log = logging.getLogger("pykvpool.fabric.rdma")

#: Largest chunk, whatever a device says it takes: drivers promise 2^64, and the kernel pins no more than there is.
MAX_CHUNK_BYTES = 1 << 40


def chunk_bytes(limits: Iterable[Limits]) -> int:
    """Bytes of one chunk that every one of these devices takes: whole pages, where they allow a page at all."""
    most = min(MAX_CHUNK_BYTES, *(limit.max_mr_size_bytes for limit in limits))
    return most // mmap.PAGESIZE * mmap.PAGESIZE or most


def explain(error: VerbsError, size_bytes: int) -> PoolError:
    """A refused registration, as an error of ours that says what to do."""
    hint = locked_memory().shortage(size_bytes) if error.errno in (errno.ENOMEM, errno.EAGAIN) else ""
    if not hint and error.errno == errno.ENOMEM:
        hint = "the device has no room for more registrations, or the host no memory to pin"
    return TransferFailed(
        f"{error.device} refuses to register {size_bytes} bytes ({error.message}){f': {hint}' if hint else ''}",
        device=error.device,
        size_bytes=size_bytes,
    )


def register_chunks(
    domain: ProtectionDomain, address: int, size_bytes: int, chunk: int, access: Access
) -> list[MemoryRegion]:
    """All of a range, in order. Raises what `explain` makes of a refusal; nothing stays registered then."""
    regions: list[MemoryRegion] = []
    try:
        for offset in range(0, size_bytes, chunk):
            region = domain.register(address + offset, min(chunk, size_bytes - offset), access)
            regions.append(region)
    except VerbsError as error:
        for region in regions:
            region.close()
        raise explain(error, size_bytes) from error
    return regions


class Registration:
    """One range of local memory, registered with each device when it is first used there.

    Whoever uses it for a transfer counts as its user from `use` to `done`; it is closed when it was retired and the
    last user is gone, as pages must stay pinned while a card may touch them.
    """

    def __init__(self, address: int, size_bytes: int, chunk: int, access: Access = Access.LOCAL_WRITE) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self._chunk = chunk
        self._access = access
        self._regions: dict[Device, list[MemoryRegion]] = {}
        self._users = 0
        self._retired = False

    def covers(self, address: int, length: int) -> bool:
        return self.address <= address and address + length <= self.address + self.size_bytes

    def room(self, address: int) -> int:
        """Bytes from `address` to the end of its chunk: one piece of a work request has one key."""
        offset = address - self.address
        return min(self._chunk - offset % self._chunk, self.size_bytes - offset)

    def piece(self, device: Device, domain: ProtectionDomain, address: int, length: int) -> Piece:
        """The `length` bytes at `address`, which are within one chunk, as requests to that device name them; registers
        there if that is the first use. Raises `PoolError`."""
        regions = self.regions(device, domain)
        chunk, offset = divmod(address - self.address, self._chunk)
        # A region may have addresses of its own: those of a dma-buf need not be the memory's.
        return Piece(regions[chunk].address + offset, length, regions[chunk].lkey)

    def regions(self, device: Device, domain: ProtectionDomain) -> list[MemoryRegion]:
        """One for each chunk, as `piece`."""
        regions = self._regions.get(device)
        if regions is None:
            invariant(not self._retired or self._users, "retired memory is registered for its users alone")
            regions = self._regions[device] = self._register(device, domain)
        return regions

    def _register(self, device: Device, domain: ProtectionDomain) -> list[MemoryRegion]:
        """Raises `PoolError`."""
        return register_chunks(domain, self.address, self.size_bytes, self._chunk, self._access)

    def is_registered_with(self, device: Device) -> bool:
        return device in self._regions

    def use(self) -> None:
        self._users += 1

    def done(self) -> None:
        self._users -= 1
        self._close_if_over()

    def retire(self) -> None:
        """No new users; its memory is about to be the user's own again."""
        self._retired = True
        self._close_if_over()

    @property
    def is_registered(self) -> bool:
        """Whether any device knows it."""
        return bool(self._regions)

    def forget(self, device: Device) -> None:
        """The device is about to be closed: let go of it there. Raises `VerbsError` where it refuses."""
        regions = self._regions.get(device, [])
        while regions:
            device.let_go(regions[-1].close)
            regions.pop()
        self._regions.pop(device, None)

    def _close_if_over(self) -> None:
        if self._retired and not self._users:
            for device in list(self._regions):
                try:
                    self.forget(device)
                except VerbsError as error:  # its bytes have been moved all the same
                    log.warning("rdma: memory stays registered for now: %s", error)


def forget_all(registrations: Iterable[Registration], device: Device) -> None:
    """Let go of all that can be let go of. Raises the last `VerbsError`."""
    refused: VerbsError | None = None
    for registration in registrations:
        try:
            registration.forget(device)
        except VerbsError as error:
            refused = error
    if refused is not None:
        raise refused


class Leaving:
    """Registrations that are not wanted any more and that a device still has: somebody uses them, or it refused."""

    def __init__(self) -> None:
        #: Values mean nothing.
        self._those: dict[Registration, None] = {}

    def retire(self, registration: Registration) -> None:
        """No new users; it goes with its last one."""
        registration.retire()
        self._those = {each: None for each in [*self._those, registration] if each.is_registered}

    def __iter__(self) -> Iterator[Registration]:
        return iter(self._those)
