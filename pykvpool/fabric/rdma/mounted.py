"""The owner's memory as its cards serve it: one protection domain and one registration per mount and device.

A key of one mount is worth nothing with a queue pair of another, because their domains differ: that is what ends a
generation for good. All devices cut the mount into the same chunks, so that a peer's request for a range means the same
on every rail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from pykvpool.errors import ConfigError, PoolError
from pykvpool.fabric.base import Exported
from pykvpool.fabric.rdma.rails import Device
from pykvpool.fabric.rdma.registration import chunk_bytes, register_chunks
from pykvpool.fabric.rdma.wire import MAX_OFFERED_KEYS
from pykvpool.fabric.verbs import Access, MemoryRegion, ProtectionDomain, VerbsError
from pykvpool.memory.copying import pinned

log = logging.getLogger("pykvpool.fabric.rdma")

#: A device that refused a mount is asked again after this time: others may have given back what it lacked.
ASK_AGAIN_S = 30.0
#: Peers read and write; what a single queue pair may do is narrowed there.
_ACCESS = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE


@dataclass(slots=True)
class OnDevice:
    """A mount on one device."""

    domain: ProtectionDomain
    regions: list[MemoryRegion] = field(default_factory=list)


class RegisteredMount:
    """One mount, registered until `close`."""

    def __init__(self, memory: Exported, devices: Sequence[Device]) -> None:
        """Raises `ConfigError`, with the fix, where no device takes it."""
        self.memory = memory
        self.size_bytes = memory.size_bytes
        self.chunk_bytes = chunk_bytes([device.limits for device in devices])
        chunks = -(-self.size_bytes // self.chunk_bytes)
        if chunks * len(devices) > MAX_OFFERED_KEYS:
            raise ConfigError(
                f"a segment of {self.size_bytes} bytes takes {chunks} registrations on each device: lower segment_size"
            )
        with pinned(memory.view, writable=True) as address:
            self.address = address
        self._devices: dict[Device, OnDevice] = {}
        #: Why a device does not serve it, and when it may be asked again.
        self._refusals: dict[Device, tuple[PoolError, float]] = {}
        for device in devices:
            self.find(device)
        if not self._devices:
            raise ConfigError(str(next(iter(self._refusals.values()))[0]))

    def find(self, device: Device) -> OnDevice | None:
        """The mount there; registered at first use. None where the device refuses (and has done so a moment ago)."""
        if device not in self._devices and self._may_ask(device):
            try:
                self._devices[device] = self._register(device)
                self._refusals.pop(device, None)
            except PoolError as error:
                log.warning("rdma: a mount is not served by %s: %s", device.name, error)
                self._refusals[device] = (error, asyncio.get_running_loop().time() + ASK_AGAIN_S)
        return self._devices.get(device)

    def _may_ask(self, device: Device) -> bool:
        return device not in self._refusals or asyncio.get_running_loop().time() >= self._refusals[device][1]

    def forget(self, device: Device) -> None:
        """Nothing of the mount stays with a device; no queue pair of it is left there. Raises `VerbsError`."""
        there = self._devices.get(device)
        if there is not None:
            while there.regions:
                device.let_go(there.regions[-1].close)
                there.regions.pop()
            device.let_go(there.domain.close)
            del self._devices[device]

    def close(self) -> None:
        """From every device, as `forget`; raises when nothing else can be let go of."""
        refused: VerbsError | None = None
        for device in list(self._devices):
            try:
                self.forget(device)
            except VerbsError as error:
                refused = error
        if refused is not None:
            raise refused

    def _register(self, device: Device) -> OnDevice:
        try:
            domain = device.context.protection_domain()
        except VerbsError as error:
            raise ConfigError(error.message) from error
        try:
            return OnDevice(domain, register_chunks(domain, self.address, self.size_bytes, self.chunk_bytes, _ACCESS))
        except BaseException:
            domain.close()
            raise
