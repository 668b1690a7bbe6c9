"""The hardware half of `fake_verbs`: a network of devices, what can be done to them, how a request is carried out."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pykvpool.fabric.verbs import (
    Access,
    EventKind,
    Gid,
    GidType,
    Limits,
    Opcode,
    QueuePairState,
    Status,
    VerbsError,
    WorkRequest,
)

if TYPE_CHECKING:
    from tests.fabric.fake_verbs import FakeContext, FakeQueuePair, FakeRegion

LIMITS = Limits(
    max_mr_size_bytes=1 << 40,
    max_mr=1 << 16,
    max_qp=1 << 10,
    max_qp_wr=1 << 12,
    max_sge=16,
    max_cqe=1 << 14,
    max_qp_read_depth=16,
    ports=1,
)


#: Below it nothing is mapped in any process (vm.mmap_min_addr).
FIRST_ADDRESS = 65_536


class Network:
    """What joins the devices. Numbers of queue pairs are unique on it, so that a mix-up of ends is noticed."""

    def __init__(self) -> None:
        self.devices: list[FakeDevice] = []
        self._numbers = 16

    def new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def device_of(self, gid: bytes, kind: GidType) -> FakeDevice | None:
        """Whom packets of that kind to that address reach."""
        for device in self.devices:
            if any(entry.address == gid and entry.type is kind for entry in device.gids):
                return device
        return None


class FakeDevice:
    """One device with one port, and what a test may do to it."""

    def __init__(self, name: str, network: Network) -> None:
        self.name = name
        self.network = network
        network.devices.append(self)
        self.limits = LIMITS
        #: How it takes a dma-buf: "refused", "by address" or "by offset".
        self.dma_buf = "refused"
        self.mtu_bytes = 4096
        self.gids = default_gids(len(network.devices))
        self.up = True
        self.gone = False
        self.vanished = False
        #: What was asked of the device, and how often.
        self.calls: Counter[str] = Counter()
        self.contexts: list[FakeContext] = []
        self.pairs: dict[int, FakeQueuePair] = {}
        self.regions: dict[int, FakeRegion] = {}
        #: Local GIDs, by index, that no queue pair can be made ready with.
        self.bad_gids: set[int] = set()
        #: Local GIDs, by index, whose packets go nowhere.
        self.silent_gids: set[int] = set()
        self._refusals: list[int] = []
        #: Calls that will be refused, by name: the error number of each, 0 where one is let through.
        self._refused_calls: dict[str, list[int]] = {}
        self._failures: list[tuple[Opcode | None, int, Status]] = []
        self._held = False
        self._keys = 0x1000 * len(network.devices)

    # -- what a test does -----------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Requests are taken but not carried out, until `step` or `release`."""
        self._held = True

    def step(self, count: int = 1) -> int:
        """Carry out up to `count` held requests, oldest queue pair first; how many there were."""
        done = 0
        for pair in list(self.pairs.values()):
            while pair.queue and done < count:
                pair.carry_out_next()
                done += 1
        return done

    def release(self) -> None:
        self._held = False
        self.run()

    @property
    def under_way(self) -> int:
        """Requests that were posted and not carried out."""
        return sum(len(pair.queue) for pair in self.pairs.values())

    def fail_next(self, status: Status, opcode: Opcode | None = None, skip: int = 0) -> None:
        """The next request (of that kind; after `skip` of them) ends with `status` and moves no byte."""
        self._failures.append((opcode, skip, status))

    def refuse_next_registration(self, number: int = errno.ENOMEM) -> None:
        self._refusals.append(number)

    def refuse_call(self, name: str, number: int = errno.EINVAL, skip: int = 0, times: int = 1) -> None:
        """The next calls of that name (after `skip` of them) fail, on a device that goes on living."""
        self._refused_calls[name] = [0] * skip + [number] * times

    def refuse_no_call(self) -> None:
        self._refused_calls.clear()

    def set_port(self, up: bool) -> None:
        """The cable is pulled, or put back: an event, and silence meanwhile."""
        self.up = up
        self.tell(EventKind.PORT_ACTIVE if up else EventKind.PORT_DOWN)

    def drop(self, *, vanished: bool = False) -> None:
        """The device is gone: an event, every queue pair broken, and every later call fails. `vanished`: the kernel has
        destroyed all that was on it, so that even closing it fails."""
        self.gone, self.vanished = True, vanished
        for pair in list(self.pairs.values()):
            pair.break_down()
        self.tell(EventKind.DEVICE_FATAL)

    def tell(self, kind: EventKind) -> None:
        for context in self.contexts:
            context.tell(kind)

    def set_limits(self, **changes: int) -> None:
        self.limits = replace(self.limits, **changes)

    # -- what the verbs ask ---------------------------------------------------------------------------------------

    def called(self, name: str) -> None:
        """Every verb says so before it does anything. Raises `VerbsError` where the test wants it refused."""
        self.calls[name] += 1
        refusals = self._refused_calls.get(name)
        number = refusals.pop(0) if refusals else 0
        if number:
            raise VerbsError(name, self.name, number, os.strerror(number))

    def new_key(self) -> int:
        # Steps of an odd number: a key that is off by a little is nobody's.
        self._keys += 0x101
        return self._keys

    def must_be_here(self, operation: str) -> None:
        if self.gone:
            raise VerbsError(operation, self.name, errno.EIO, os.strerror(errno.EIO))

    def closed(self, what: str) -> None:
        """One of its objects is not there any more."""
        if self.vanished:
            raise VerbsError(what, self.name, errno.EIO, os.strerror(errno.EIO))

    def refuse_registration(self, address: int, length: int) -> None:
        number = 0
        if self._refusals:
            number = self._refusals.pop(0)
        elif address < FIRST_ADDRESS:
            number = errno.EFAULT
        elif not 0 < length <= self.limits.max_mr_size_bytes:
            number = errno.EINVAL
        elif len(self.regions) >= self.limits.max_mr:
            number = errno.ENOMEM
        if number:
            raise VerbsError(f"register {length} bytes of memory", self.name, number, os.strerror(number))

    def run(self) -> None:
        """Carry out what is queued, unless held."""
        if self._held:
            return
        for pair in list(self.pairs.values()):
            while pair.queue:
                pair.carry_out_next()

    def scripted_failure(self, request: WorkRequest) -> Status | None:
        for index, (opcode, skip, status) in enumerate(self._failures):
            if opcode not in (None, request.opcode):
                continue
            if skip:
                self._failures[index] = (opcode, skip - 1, status)
            else:
                del self._failures[index]
                return status
        return None


def default_gids(number: int) -> tuple[Gid, ...]:
    """As on a usual RoCE port: a link-local and an IPv4 address, each in both kinds; the wanted one is the last."""
    link_local = ipaddress.IPv6Address(f"fe80::{number}").packed
    mapped = ipaddress.IPv6Address(f"::ffff:192.0.2.{number}").packed
    kinds = (GidType.ROCE_V1, GidType.ROCE_V2)
    return tuple(
        Gid(index, address, kind, f"eth{number}")
        for index, (address, kind) in enumerate((address, kind) for address in (link_local, mapped) for kind in kinds)
    )


def carry_out(pair: FakeQueuePair, request: WorkRequest) -> Status:
    """One request, as requester and responder would: returns how it ends, having moved its bytes if well."""
    failure = pair.rnic.scripted_failure(request)
    if failure is not None:
        return failure
    # The requester looks at its own memory first ...
    local_right = Access.LOCAL_WRITE if request.opcode is Opcode.READ else Access.NONE
    for piece in request.pieces:
        region = pair.rnic.regions.get(piece.lkey)
        if region is None or region.domain is not pair.domain or not region.holds(piece.address, piece.length):
            return Status.LOCAL_PROTECTION
        if local_right not in region.access:
            return Status.LOCAL_PROTECTION
    # ... then packets go out, to whom it was told ...
    peer = _answering(pair)
    if peer is None:
        return Status.RETRY_EXCEEDED
    # ... who looks at its rights. A refusal breaks both ends.
    length = sum(piece.length for piece in request.pieces)
    right = Access.REMOTE_READ if request.opcode is Opcode.READ else Access.REMOTE_WRITE
    target = peer.rnic.regions.get(request.rkey)
    allowed = (
        target is not None
        and target.domain is peer.domain
        and right in target.access
        and right in peer.access
        and target.holds(request.remote_address, length)
    )
    if not allowed:
        peer.break_down()
        return Status.REMOTE_ACCESS
    local = [(piece.address + pair.rnic.regions[piece.lkey].shift, piece.length) for piece in request.pieces]
    _move(request.opcode, local, request.remote_address)
    return Status.SUCCESS


def _answering(pair: FakeQueuePair) -> FakeQueuePair | None:
    """The peer, if packets reach it and it takes them for those of its own peer."""
    remote, path, rnic = pair.remote, pair.path, pair.rnic
    assert remote is not None and path is not None, "a queue pair that sends is connected"
    sending = next((gid for gid in rnic.gids if gid.index == path.gid_index), None)
    if rnic.gone or not rnic.up or sending is None or path.gid_index in rnic.silent_gids:
        return None
    there = rnic.network.device_of(remote.gid, sending.type)
    if there is None or there.gone or not there.up:
        return None
    peer = there.pairs.get(remote.number)
    if peer is None or peer.state not in (QueuePairState.RTR, QueuePairState.RTS) or peer.remote is None:
        return None
    is_mine = peer.remote.number == pair.number and peer.remote.gid == sending.address
    in_step = peer.remote.psn == pair.psn
    return peer if is_mine and in_step else None


def _move(opcode: Opcode, local: list[tuple[int, int]], remote: int) -> None:
    """`local`: address and length of each piece."""
    for address, length in local:
        source, target = (remote, address) if opcode is Opcode.READ else (address, remote)
        ctypes.memmove(target, source, length)
        remote += length
