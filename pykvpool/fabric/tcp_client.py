"""The peer's end of the tcp fabric: batches become lanes on pooled connections.

The deadline covers connecting and moving. Whatever ends a transfer early (deadline, cancellation, an error, `close`)
destroys its connections first, so that no local buffer is touched after the call; see `tcp_socket` for why that is
exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pykvpool.errors import Closed, DeadlineExceeded, LimitExceeded, PoolError, Unavailable
from pykvpool.fabric.addresses import endpoint_of
from pykvpool.fabric.base import Outcome, Peer, Read, Write
from pykvpool.fabric.checks import refuse_operation
from pykvpool.fabric.handshake import Identity
from pykvpool.fabric.tasks import UnderWay, run_all
from pykvpool.fabric.tcp_exchange import Item, Lane, lanes
from pykvpool.fabric.tcp_pool import ConnectionPool
from pykvpool.fabric.tcp_socket import ProgressWatch
from pykvpool.fabric.tcp_wire import MAX_REQUEST_BYTES, Kind
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import Runtime

SCHEME = "tcp"
COST = 30
#: Connections that one batch to one owner may use at once.
MAX_LANES = 2
#: A lane carries at least this much: below, a second connection costs more than it brings.
MIN_LANE_BYTES = 8 * 1024 * 1024
#: An owner that neither takes nor sends a byte for this long hangs: another replica is asked instead.
STALL_S = 3.0


class TcpClient:
    """Reads and writes mounts over TCP.

    Args:
        cluster: id that owners must have; empty: any.
        token: the shared token; both ends prove that they know it.
    """

    scheme = SCHEME
    cost = COST

    def __init__(self, peer: Peer, runtime: Runtime, *, cluster: str = "", token: str | None = None) -> None:
        self._identity = Identity(peer, cluster, token.encode() if token else None)
        self._runtime = runtime
        self._pools: dict[str, ConnectionPool] = {}
        self._closed: Closed | None = None
        self._under_way = UnderWay()

    def reaches(self, segment: SegmentDescriptor) -> str | None:
        return endpoint_of(segment.endpoints, SCHEME)

    async def read(self, batch: Sequence[Read], timeout_s: float) -> list[Outcome]:
        return await self._transfer(batch, timeout_s, Kind.READ)

    async def write(self, batch: Sequence[Write], timeout_s: float) -> list[Outcome]:
        return await self._transfer(batch, timeout_s, Kind.WRITE)

    async def map_view(self, segment: SegmentDescriptor, offset: int, length: int) -> memoryview | None:
        """Always None: nothing is shared over a network."""
        return None

    async def close(self) -> None:
        """Transfers under way end with `Closed`; returns when the last has."""
        self._closed = Closed("the tcp fabric client is closed")
        await self._under_way.end()
        for pool in self._pools.values():
            pool.close(self._closed)

    async def _transfer(self, batch: Sequence[Read | Write], timeout_s: float, kind: Kind) -> list[Outcome]:
        items = [Item(index, operation) for index, operation in enumerate(batch)]
        by_endpoint: dict[str, list[Item]] = {}
        #: By identity of the descriptor: a batch of thousands of operations has few of them.
        endpoints: dict[int, str | None] = {}
        for item in items:
            segment = item.operation.segment
            if id(segment) not in endpoints:
                endpoints[id(segment)] = self.reaches(segment)
            endpoint = endpoints[id(segment)]
            refusal = self._refuse(item.operation, endpoint)
            if refusal is not None:
                item.outcome = Outcome(error=refusal, scheme=SCHEME)
            else:
                by_endpoint.setdefault(endpoint or "", []).append(item)
        plan: list[tuple[str, Lane]] = []
        for endpoint, group in by_endpoint.items():
            size = sum(item.operation.length for item in group)
            plan += [(endpoint, lane) for lane in lanes(SCHEME, kind, group, _lane_count(size))]
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                with self._under_way.counted(deadline):
                    await run_all([self._run(endpoint, lane) for endpoint, lane in plan])
        except TimeoutError:
            late = self._closed or DeadlineExceeded(f"tcp: not done within {timeout_s:g} s")
            for _, lane in plan:
                lane.settle(late)
        return [item.outcome or Outcome(error=Unavailable("tcp: no outcome"), settled=False) for item in items]

    def _refuse(self, operation: Read | Write, endpoint: str | None) -> PoolError | None:
        """Why `operation` cannot be tried at all, None if it can."""
        if self._closed is not None:
            return self._closed
        if endpoint is None:
            return Unavailable(f"segment {operation.segment.segment} has no tcp endpoint")
        if operation.length > MAX_REQUEST_BYTES:
            return LimitExceeded(f"one operation moves at most {MAX_REQUEST_BYTES} bytes over tcp")
        return refuse_operation(operation, self._identity.peer)

    async def _run(self, endpoint: str, lane: Lane) -> None:
        """Carry a lane out; afterwards all of its operations have an outcome, unless this was cancelled."""
        try:
            if not await self._attempt(endpoint, lane, fresh=False):
                await self._attempt(endpoint, lane, fresh=True)
        except PoolError as error:
            lane.settle(error)

    async def _attempt(self, endpoint: str, lane: Lane, *, fresh: bool) -> bool:
        """True when done. False: a kept connection turned out dead before anything began; try a fresh one."""
        pool = self._pools.get(endpoint)
        if pool is None:
            pool = self._pools[endpoint] = ConnectionPool(endpoint, self._identity, self._runtime)
        connection = await pool.acquire(fresh=fresh)
        watch = ProgressWatch(connection.stream, STALL_S)
        try:
            with watch:
                await lane.exchange(connection.stream)
        except BaseException as error:
            pool.discard(
                connection, error if isinstance(error, PoolError) else Unavailable("the transfer was given up")
            )
            if isinstance(error, Unavailable) and connection.used and lane.untouched and not watch.stalled:
                return False
            raise
        pool.release(connection)
        return True


def _lane_count(size_bytes: int) -> int:
    return max(1, min(MAX_LANES, size_bytes // MIN_LANE_BYTES))
