"""The peer's end of the rdma fabric: batches become slices on the lanes of links, one link for each mount.

Lines, links and devices are opened when first used. What the contract of `pykvpool.fabric.base` asks for is held in
`link`; here batches are sorted, checksums taken (the card moves bytes, our CPU sums them: while they travel for a
write, afterwards for a read), and everything is closed in the right order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from pykvpool.errors import Closed, DeadlineExceeded, InvalidArgument, PoolError, TransferFailed, Unavailable
from pykvpool.fabric.addresses import endpoint_of
from pykvpool.fabric.base import Outcome, Peer, Read, Write
from pykvpool.fabric.checks import refuse_operation
from pykvpool.fabric.handshake import Identity
from pykvpool.fabric.rdma.connecting import Connector
from pykvpool.fabric.rdma.link import Link
from pykvpool.fabric.rdma.local_memory import LocalMemory
from pykvpool.fabric.rdma.rails import Device, Rail, Rails, require_verbs
from pykvpool.fabric.rdma.session import Session
from pykvpool.fabric.rdma.settings import COST, SCHEME, RdmaSettings
from pykvpool.fabric.rdma.slices import Call, Item
from pykvpool.fabric.rdma.staging import ARENA_BYTES
from pykvpool.fabric.tasks import UnderWay, run_all
from pykvpool.fabric.verbs import VerbsError
from pykvpool.memory.buffers import BufferRegistry
from pykvpool.memory.copying import INLINE_BYTES, checksum
from pykvpool.memory.cuda import GpuMemory
from pykvpool.memory.device import DevicePiece
from pykvpool.model.ids import Generation
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import Runtime

log = logging.getLogger("pykvpool.fabric.rdma")

#: A link is for one mount, by the endpoint of its owner.
Key = tuple[str, Generation]


class RdmaClient:
    """Reads and writes mounts over RDMA.

    Args:
        cluster, token: as for tcp.
        buffers: what the user registered; None: nothing.
        gpu: GPU memory, likewise.

    Raises `NotSupported` where there is no verbs binding or no device.
    """

    scheme = SCHEME
    cost = COST

    def __init__(
        self,
        peer: Peer,
        runtime: Runtime,
        *,
        cluster: str = "",
        token: str | None = None,
        settings: RdmaSettings | None = None,
        buffers: BufferRegistry | None = None,
        gpu: GpuMemory | None = None,
    ) -> None:
        self._settings = settings or RdmaSettings()
        self._identity = Identity(peer, cluster, token.encode() if token else None)
        self._runtime = runtime
        self._rails = Rails(require_verbs(self._settings), self._settings, self._on_rail_lost)
        self._memory = LocalMemory(buffers, gpu, self._rails.locked)
        self._connector = Connector(self._memory, runtime, self._rails.lose)
        self._sessions: dict[str, Session] = {}
        self._links: dict[Key, Link] = {}
        #: Failed links that wait for their owner's last word.
        self._ending: list[Link] = []
        #: One connects at a time per owner; the others use what it got.
        self._connecting: dict[str, asyncio.Lock] = {}
        #: Dead devices that could not be closed yet; values mean nothing.
        self._unburied: dict[Device, None] = {}
        self._closed: Closed | None = None
        self._under_way = UnderWay()
        self._check_locked()

    def reaches(self, segment: SegmentDescriptor) -> str | None:
        return endpoint_of(segment.endpoints, SCHEME)

    async def read(self, batch: Sequence[Read], timeout_s: float) -> list[Outcome]:
        return await self._transfer(batch, timeout_s)

    async def write(self, batch: Sequence[Write], timeout_s: float) -> list[Outcome]:
        return await self._transfer(batch, timeout_s)

    def device_obstacle(self, operation: Read | Write) -> str | None:
        """See `pykvpool.fabric.base.DeviceFabric`. Every rail must reach the memory: any may carry any part of it."""
        gpu = self._memory.gpu
        if gpu is None:
            return "this client has no GPU memory"
        try:
            self._check_open()
            devices = list(dict.fromkeys(rail.device for rail in self._rails.active or self._rails.refresh()))
            for device in devices:
                self._memory.domain(device)
        except PoolError as error:
            return error.message
        pieces = [piece for piece in operation.device if isinstance(piece, DevicePiece) and piece.nbytes]
        return next((why for piece in pieces if (why := gpu.obstacle(piece, devices)) is not None), None)

    def device_path(self, operation: Read | Write) -> str:
        """See `pykvpool.fabric.base.DeviceFabric`."""
        gpu = self._memory.gpu
        pieces = [piece for piece in operation.device if isinstance(piece, DevicePiece)]
        return gpu.path(pieces[0]) if gpu is not None and pieces else ""

    async def map_view(self, segment: SegmentDescriptor, offset: int, length: int) -> memoryview | None:
        """Always None: nothing is shared over a network."""
        return None

    async def close(self) -> None:
        """Transfers under way end with `Closed`; returns when the last has, and every device is closed."""
        if self._closed is not None:
            await self._under_way.ended()
            return
        self._closed = Closed("the rdma fabric client is closed")
        await self._under_way.end()
        for link in [*self._links.values(), *self._ending]:
            await link.close(self._closed)
        for session in list(self._sessions.values()):
            await session.close(self._closed)
        self._connector.close()
        for device in self._memory.attached:
            try:
                self._memory.detach(device)
            except VerbsError as error:
                log.warning("rdma: memory stays registered with %s until this process ends: %s", device.name, error)
        self._memory.close()
        self._rails.close_all()

    # -- one batch -----------------------------------------------------------------------------------------------

    async def _transfer(self, batch: Sequence[Read | Write], timeout_s: float) -> list[Outcome]:
        outcomes: list[Outcome | None] = [None] * len(batch)
        groups: dict[Key, list[Item]] = {}
        calls: dict[Key, Call] = {}
        loop = asyncio.get_running_loop()
        for index, operation in enumerate(batch):
            refusal = self._refuse(operation)
            if refusal is not None:
                outcomes[index] = Outcome(error=refusal, scheme=SCHEME)
                continue
            key = (self.reaches(operation.segment) or "", operation.segment.generation)
            if key not in calls:
                calls[key] = Call(loop.create_future())
            groups.setdefault(key, []).append(Item(index, operation, calls[key]))
        sums: dict[int, int] = {}
        late: PoolError = DeadlineExceeded(f"{SCHEME}: not done within {timeout_s:g} s")
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                with self._under_way.counted(deadline):
                    await run_all([self._move(key, calls[key], items, sums) for key, items in groups.items()])
        except TimeoutError:
            late = self._closed or late
        for device in list(self._unburied):
            self._bury(device)
        for item in (item for items in groups.values() for item in items):
            outcomes[item.index] = self._outcome(item, sums, late)
        return [outcome or Outcome(error=late, scheme=SCHEME) for outcome in outcomes]

    def _refuse(self, operation: Read | Write) -> PoolError | None:
        """Why `operation` cannot be tried at all, None if it can."""
        if self._closed is not None:
            return self._closed
        segment = operation.segment
        if self.reaches(segment) is None:
            return Unavailable(f"segment {segment.segment} has no rdma endpoint")
        refusal = refuse_operation(operation, self._identity.peer, takes_device=True)
        return refusal or _out_of_bounds(operation, segment.size_bytes)

    async def _move(self, key: Key, call: Call, items: list[Item], sums: dict[int, int]) -> None:
        """Carry out all operations on one mount. Errors are in the items afterwards."""
        try:
            link = await self._link(key)
        except PoolError as error:
            _fail(items, error)
            return
        for item in items:
            item.error = _out_of_bounds(item.operation, link.size_bytes)
        items = [item for item in items if item.error is None]
        summed = [item for item in items if item.is_summed]
        try:
            if items and items[0].is_write:
                await run_all([link.carry(call, items), self._sum(summed, sums)])
            else:
                await link.carry(call, items)
                await self._sum([item for item in summed if item.error is None], sums)
        except PoolError as error:
            _fail(items, error)

    async def _sum(self, items: list[Item], sums: dict[int, int]) -> None:
        """Checksums of the items' bytes, by index; those of a large batch away from the loop."""
        total = sum(item.operation.length for item in items)

        def compute() -> dict[int, int]:
            return {item.index: checksum(item.operation.pieces) for item in items}

        sums.update(compute() if total <= INLINE_BYTES else await self._runtime.offload.run(compute))

    @staticmethod
    def _outcome(item: Item, sums: dict[int, int], late: PoolError) -> Outcome:
        error = item.error
        if error is None and (item.left or (item.is_summed and item.index not in sums)):
            error = late
        if error is not None:
            return Outcome(error=error, settled=not item.in_doubt, scheme=SCHEME)
        return Outcome(checksum=sums.get(item.index), scheme=SCHEME)

    # -- links ---------------------------------------------------------------------------------------------------

    async def _link(self, key: Key) -> Link:
        """A link that works; made anew where it has failed. Raises `PoolError`."""
        endpoint, generation = key
        async with self._connecting.setdefault(endpoint, asyncio.Lock()):
            self._check_open()
            link = self._links.get(key)
            if link is not None and link.failure is None:
                await link.open()
                return link
            self._forget_failed_links()
            self._rails.refresh()
            session = await self._session(endpoint)
            link = Link(session, generation, self._rails, self._connector, self._memory, self._settings.queue_pairs)
            # Known from now on: a rail that is lost meanwhile is lost to it too.
            self._links[key] = link
            await link.open()
            self._check_open()
            return link

    def _forget_failed_links(self) -> None:
        failed = [key for key, link in self._links.items() if link.failure is not None]
        self._ending = [link for link in self._ending if link.busy] + [self._links.pop(key) for key in failed]

    async def _session(self, endpoint: str) -> Session:
        session = self._sessions.get(endpoint)
        if session is not None and session.failure is not None:
            del self._sessions[endpoint]
            await session.close(session.failure)
            session = None
        if session is None:
            session = await Session.connect(endpoint, self._identity, self._runtime)
            self._sessions[endpoint] = session
        return session

    def _check_locked(self) -> None:
        """Say so now if not even the slots can be registered."""
        devices = len(self._settings.devices) or len(require_verbs(self._settings).devices())
        shortage = self._rails.locked().shortage(ARENA_BYTES * devices)
        if shortage:
            log.warning(
                "rdma: this client registers %d bytes with each of %d devices: %s", ARENA_BYTES, devices, shortage
            )

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _on_rail_lost(self, rail: Rail, error: PoolError) -> None:
        for link in list(self._links.values()):
            link.on_rail_lost(rail, error)
        if rail.device.failure is not None:
            asyncio.get_running_loop().call_soon(self._bury, rail.device)

    def _bury(self, device: Device) -> None:
        """Close a dead device. Where something of a transfer or a lane in the making is on it still, later."""
        self._unburied[device] = None
        try:
            self._connector.drop(device)
            self._memory.detach(device)
            self._rails.close(device)
        except VerbsError as error:
            log.debug("rdma: %s is closed later: %s", device.name, error)
        else:
            del self._unburied[device]


def _fail(items: Sequence[Item], error: PoolError) -> None:
    """Nothing of these was begun, or the link has said of each how it ended."""
    if isinstance(error, VerbsError):
        error = TransferFailed(error.message)
    for item in items:
        item.error = item.error or error


def _out_of_bounds(operation: Read | Write, size_bytes: int) -> PoolError | None:
    if operation.offset + operation.length <= size_bytes:
        return None
    return InvalidArgument(
        f"{operation.length} bytes at offset {operation.offset} are outside the segment of {size_bytes} bytes",
        offset=operation.offset,
        length=operation.length,
    )
