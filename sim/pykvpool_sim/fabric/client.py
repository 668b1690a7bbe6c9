"""The peer's side of ``sim://``: batches become works on queue pairs, and nothing returns before it has drained.

For each mount there are a few *lanes*, a queue pair each, made when first used. A batch is dealt out over them; a lane
posts a window of operations at a time, so that what is far behind in a batch has not begun, and is settled, when the
batch is torn off. A call that is torn off (deadline, cancellation) takes down the queue pairs that carry its
operations, and waits until they are flushed: only then are its buffers its own.

A share of writes ends with a confirmation (a small read behind them): that they were acknowledged does not say that
they are in the owner's memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import xxhash

from pykvpool.errors import Closed, DeadlineExceeded, InvalidArgument, PoolError, Unavailable
from pykvpool.fabric.addresses import endpoint_of
from pykvpool.fabric.base import Outcome, Peer, Read, Write
from pykvpool.fabric.checks import refuse_operation
from pykvpool.fabric.tasks import run_all
from pykvpool.model.ids import Generation
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import drain
from pykvpool_sim.fabric.queue_pair import End, QueuePair, Work
from pykvpool_sim.fabric.server import RAILS
from pykvpool_sim.fabric.wire import DataNetwork
from pykvpool_sim.host import Host

COST = 20
#: Operations that are under way on one lane.
WINDOW = 2


@dataclass(slots=True)
class _Lane:
    """At most one queue pair at a time."""

    pair: QueuePair | None = None
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _Call:
    """One read or write call."""

    batch: Sequence[Read | Write]
    outcomes: list[Outcome | None]
    #: Operations that were posted and did not end well: of writes among them something may still land.
    unsettled: dict[int, None] = field(default_factory=dict)


class SimFabricClient:
    """See `pykvpool.fabric.base.FabricClient`. `blind`: its CPU does not see what it reads (a GPU's memory), so reads
    come without a checksum. `maps`: its machine is the owner's too, whose memory it can look at where it lies. Belongs
    to the life of `host` in which it is made."""

    cost = COST

    def __init__(
        self,
        host: Host,
        network: DataNetwork,
        peer: Peer,
        *,
        lanes: int = 1,
        blind: bool = False,
        maps: bool = False,
        scheme: str = RAILS[0],
    ) -> None:
        self.scheme = scheme
        self._host = host
        self._life = host.life
        self._network = network
        self._peer = peer
        self._lane_count = lanes
        self._blind = blind
        self._maps = maps
        self._lanes: dict[Generation, list[_Lane]] = {}
        self._closed: Closed | None = None

    def reaches(self, segment: SegmentDescriptor) -> str | None:
        return endpoint_of(segment.endpoints, self.scheme)

    async def read(self, batch: Sequence[Read], timeout_s: float) -> list[Outcome]:
        return await self._move(batch, timeout_s)

    async def write(self, batch: Sequence[Write], timeout_s: float) -> list[Outcome]:
        return await self._move(batch, timeout_s)

    async def map_view(self, segment: SegmentDescriptor, offset: int, length: int) -> memoryview | None:
        """Memory of another machine cannot be mapped. Raises `InvalidArgument`."""
        if not self._maps or self.reaches(segment) is None:
            return None
        self._check_open()
        host, rkey = self._address(segment)
        memory = self._network.find(host, rkey)
        if memory is None or memory.closed or memory.generation != segment.generation:
            return None
        refusal = self._out_of_bounds(segment, offset, length)
        if refusal is not None:
            raise refusal
        return memory.mapped(offset, length)

    async def close(self) -> None:
        self._closed = Closed("the sim fabric client is closed")
        for lane in [lane for lanes in self._lanes.values() for lane in lanes]:
            if lane.pair is not None:
                await asyncio.shield(lane.pair.destroy())

    # -- one call ------------------------------------------------------------------------------------------------

    async def _move(self, batch: Sequence[Read | Write], timeout_s: float) -> list[Outcome]:
        call = _Call(batch, [None] * len(batch))
        shares: dict[tuple[Generation, int], list[int]] = {}
        for index, operation in enumerate(batch):
            refusal = refuse_operation(operation, self._peer) or self._refuse(operation)
            if refusal is not None:
                call.outcomes[index] = Outcome(error=refusal, scheme=self.scheme)
            elif not operation.length:
                call.outcomes[index] = self._success(operation)
            else:
                shares.setdefault((operation.segment.generation, index % self._lane_count), []).append(index)
        late: PoolError = DeadlineExceeded(f"{self.scheme}: not done within {timeout_s:g} s")
        try:
            async with asyncio.timeout(timeout_s):
                await run_all([self._share(call, lane, indexes) for (_, lane), indexes in shares.items()])
        except TimeoutError:
            pass  # whatever has no outcome is late
        return [
            outcome or Outcome(error=self._closed or late, settled=index not in call.unsettled, scheme=self.scheme)
            for index, outcome in enumerate(call.outcomes)
        ]

    def _refuse(self, operation: Read | Write) -> PoolError | None:
        """Out of the bounds of its segment, or of any that we reach."""
        segment = operation.segment
        if self.reaches(segment) is None:
            return Unavailable(f"segment {segment.segment} is not served over {self.scheme}")
        return self._out_of_bounds(segment, operation.offset, operation.length)

    def _out_of_bounds(self, segment: SegmentDescriptor, offset: int, length: int) -> InvalidArgument | None:
        if offset + length > segment.size_bytes:
            return InvalidArgument(
                f"{length} bytes at offset {offset} are outside the segment of {segment.size_bytes} bytes",
                offset=offset,
                length=length,
            )
        return None

    async def _share(self, call: _Call, number: int, indexes: list[int]) -> None:
        """Carry out one lane's part of a call."""
        segment = call.batch[indexes[0]].segment
        waiting = deque(indexes)
        try:
            pair = await self._connected(segment, number)
        except PoolError as error:
            for index in indexes:
                call.outcomes[index] = Outcome(error=error, scheme=self.scheme)
            return
        under_way: deque[tuple[int, Work]] = deque()
        try:
            while waiting or under_way:
                while waiting and len(under_way) < WINDOW and pair.near_end is End.OPEN:
                    index = waiting.popleft()
                    under_way.append((index, self._post(pair, call.batch[index])))
                if not under_way:
                    break
                index, work = under_way[0]
                await asyncio.wait([work.done])
                under_way.popleft()
                self._note(call, index, work)
            await self._confirm(call, pair, indexes)
        except asyncio.CancelledError:
            await drain(pair.destroy())
            for index, work in under_way:
                await drain(work.done)
                self._note(call, index, work, torn_off=True)
            raise
        broken = self._closed or Unavailable(f"the queue pair to {segment.node!r} broke")
        for index in waiting:
            call.outcomes[index] = Outcome(error=broken, scheme=self.scheme)

    async def _confirm(self, call: _Call, pair: QueuePair, indexes: list[int]) -> None:
        """The writes that were acknowledged have landed when this returns, or are not known to have."""
        written = [
            index
            for index in indexes
            if isinstance(call.batch[index], Write) and (out := call.outcomes[index]) is not None and out.error is None
        ]
        if not written:
            return
        error: PoolError | None = Unavailable("the queue pair broke")
        for index in written:
            call.unsettled[index] = None
            call.outcomes[index] = None
        if pair.near_end is End.OPEN:
            work = pair.confirm()
            await asyncio.wait([work.done])
            error = work.done.result()
        for index in written:
            if error is None:
                del call.unsettled[index]
                call.outcomes[index] = self._success(call.batch[index])
            else:
                call.outcomes[index] = Outcome(error=self._closed or error, settled=False, scheme=self.scheme)

    def _post(self, pair: QueuePair, operation: Read | Write) -> Work:
        put_id = operation.put_id if isinstance(operation, Write) else None
        return pair.post(operation.offset, operation.length, operation.pieces, put_id)

    def _note(self, call: _Call, index: int, work: Work, *, torn_off: bool = False) -> None:
        """How one operation ended. One that was torn off gets its error from the call."""
        operation, error = call.batch[index], work.done.result()
        if error is None:
            call.outcomes[index] = self._success(operation)
            return
        if isinstance(operation, Write):
            call.unsettled[index] = None
        if not torn_off:
            call.outcomes[index] = Outcome(
                error=self._closed or error, settled=index not in call.unsettled, scheme=self.scheme
            )

    def _success(self, operation: Read | Write) -> Outcome:
        checksum = None
        if operation.want_checksum and not (self._blind and isinstance(operation, Read)):
            state = xxhash.xxh3_64()
            for piece in operation.pieces:
                state.update(piece)
            checksum = state.intdigest()
        return Outcome(checksum=checksum, scheme=self.scheme)

    # -- queue pairs ---------------------------------------------------------------------------------------------

    async def _connected(self, segment: SegmentDescriptor, number: int) -> QueuePair:
        """The queue pair of a lane; a new one where it has none that works. Raises `PoolError`."""
        lanes = self._lanes.setdefault(segment.generation, [_Lane() for _ in range(self._lane_count)])
        lane = lanes[number]
        async with lane.connecting:
            self._check_open()
            if lane.pair is None or lane.pair.near_end is not End.OPEN:
                lane.pair = await self._connect(segment)
                self._check_open()
            return lane.pair

    def _check_open(self) -> None:
        """Nothing was posted yet by whoever asks."""
        if self._closed is not None:
            raise self._closed

    async def _connect(self, segment: SegmentDescriptor) -> QueuePair:
        host, rkey = self._address(segment)
        return await self._network.connect(
            self._life, self._host.name, host, rkey, segment.generation, self._peer, self.scheme
        )

    def _address(self, segment: SegmentDescriptor) -> tuple[str, int]:
        """Host and rkey of a segment that we reach."""
        host, _, rkey = (self.reaches(segment) or "").removeprefix(f"{self.scheme}://").partition("/")
        return host, int(rkey)
