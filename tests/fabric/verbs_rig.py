"""What the seam's tests stand on: two devices of one `Verbs`, connected queue pairs between them, memory to move."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import mmap
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from pykvpool.fabric.verbs import (
    Access,
    Completion,
    CompletionQueue,
    DeviceContext,
    Gid,
    GidType,
    MemoryRegion,
    Opcode,
    Path,
    Piece,
    Port,
    ProtectionDomain,
    QueuePair,
    QueuePairLimits,
    RemoteQueuePair,
    Retries,
    Verbs,
    WorkRequest,
)

#: Everything that a queue pair, or a region, may let its peer do.
ALL = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE
REMOTE = Access.REMOTE_READ | Access.REMOTE_WRITE
SEND_DEPTH = 16
#: Emulated processors are slow; nothing here waits for it to pass.
TIMEOUT_S = 60.0
PATIENT = Retries()
#: Gives a silent peer up within a second.
IMPATIENT = Retries(timeout_exponent=12, count=2)


class Memory:
    """Anonymous memory of this process, by address."""

    def __init__(self, size: int) -> None:
        self.map = mmap.mmap(-1, size)
        self.size = size
        self._hold = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(self._hold)

    def __getitem__(self, where: slice) -> bytes:
        return self.map[where]

    def __setitem__(self, where: slice, data: bytes) -> None:
        self.map[where] = data


def best_gid(port: Port) -> Gid:
    """RoCE v2 with an IPv4 address."""
    return next(gid for gid in port.gids if gid.type is GidType.ROCE_V2 and gid.ipv4)


@dataclass
class End:
    """One device, opened, with everything that one side of a connection needs."""

    context: DeviceContext
    domain: ProtectionDomain
    completions: CompletionQueue
    memory: Memory
    region: MemoryRegion
    gid: Gid
    mtu_bytes: int
    pairs: list[QueuePair] = field(default_factory=list)
    regions: list[MemoryRegion] = field(default_factory=list)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def pair(self, depth: int = SEND_DEPTH, domain: ProtectionDomain | None = None) -> QueuePair:
        pair = (domain or self.domain).queue_pair(self.completions, QueuePairLimits(depth, 4))
        self.pairs.append(pair)
        return pair

    def described(self, pair: QueuePair, psn: int) -> RemoteQueuePair:
        return RemoteQueuePair(pair.number, psn, self.gid.address, 0, self.mtu_bytes)

    def path(self) -> Path:
        return Path(1, self.gid.index, self.mtu_bytes, read_depth=4)

    def request(
        self,
        opcode: Opcode,
        other: End,
        length: int,
        *,
        offset: int = 0,
        remote_offset: int = 0,
        rkey: int | None = None,
        lkey: int | None = None,
        signaled: bool = True,
    ) -> WorkRequest:
        """One piece of this end's memory, from or to the other's."""
        return WorkRequest(
            next(self.ids),
            opcode,
            (Piece(self.memory.address + offset, length, self.region.lkey if lkey is None else lkey),),
            other.memory.address + remote_offset,
            other.region.rkey if rkey is None else rkey,
            signaled,
        )

    async def completed(self, count: int = 1) -> list[Completion]:
        """The next `count` completions, through the descriptor and the event loop."""
        loop = asyncio.get_running_loop()
        found: list[Completion] = []
        woken = asyncio.Event()
        loop.add_reader(self.completions.fd, woken.set)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    self.completions.take_event()
                    woken.clear()
                    self.completions.arm()
                    while len(found) < count and (batch := self.completions.poll(count - len(found))):
                        found += batch
                    if len(found) == count:
                        return found
                    await woken.wait()
        finally:
            loop.remove_reader(self.completions.fd)

    def close(self) -> None:
        for each in (*self.pairs, *self.regions, self.region, self.completions, self.domain, self.context):
            each.close()


@dataclass
class Rig:
    """Two ends, and what can be done to the devices from outside."""

    verbs: Verbs
    a: End
    b: End
    #: Takes the port of `a` down, and up again.
    set_port: Callable[[bool], None]

    def connect(
        self,
        *,
        depth: int = SEND_DEPTH,
        access: Access = REMOTE,
        b_domain: ProtectionDomain | None = None,
        retries: Retries = PATIENT,
    ) -> tuple[QueuePair, QueuePair]:
        """A connected pair; what `b` lets `a` do is `access`."""
        qa, qb = self.a.pair(depth), self.b.pair(depth, b_domain)
        qa.to_init(1, REMOTE)
        qb.to_init(1, access)
        qa.to_ready_to_receive(self.b.described(qb, 222), self.a.path())
        qb.to_ready_to_receive(self.a.described(qa, 111), self.b.path())
        qa.to_ready_to_send(111, self.a.path(), retries)
        qb.to_ready_to_send(222, self.b.path(), retries)
        return qa, qb

    async def run(self, pair: QueuePair, requests: Sequence[WorkRequest]) -> list[Completion]:
        """Post from `a`, and wait for as many completions as were asked for."""
        pair.post(requests)
        return await self.a.completed(sum(request.signaled for request in requests))


def open_end(verbs: Verbs, device: str, size: int = 1 << 20) -> End:
    context = verbs.open(device)
    port = context.port(1)
    domain = context.protection_domain()
    memory = Memory(size)
    region = domain.register(memory.address, size, ALL)
    return End(context, domain, context.completion_queue(256), memory, region, best_gid(port), port.active_mtu_bytes)


@contextlib.asynccontextmanager
async def rig_of(verbs: Verbs, a: str, b: str, set_port: Callable[[bool], None]) -> AsyncIterator[Rig]:
    rig = Rig(verbs, open_end(verbs, a), open_end(verbs, b), set_port)
    try:
        yield rig
    finally:
        rig.a.close()
        rig.b.close()
