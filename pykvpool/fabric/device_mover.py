"""Operations on GPU memory, over any fabric: after the engine's work, directly where the NIC can, staged where not.

    engine's event reached ──► the fabric reaches it ──► one-sided, no copy ──► flush ─┐
                           └─► it does not ──► ring ◄──copy──► GPU, waves overlapping ─┴─► outcome

The router hands over a batch and the fabric that it chose; `device_stager` does the lower branch. The two rules of
`base` hold here too: a call is over when neither a copy engine nor the fabric touches the caller's GPU memory, and an
outcome says whether anything may still land in the pool.

Staged bytes pass the host's memory, so their checksum is taken as for any other; bytes that a NIC moved are seen by no
CPU, and their outcome has none: a put is then committed unsummed, and a get is vouched for by its lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from pykvpool.errors import Closed, DeadlineExceeded, GpuFailed, InternalError, InvalidArgument, NotSupported, PoolError
from pykvpool.fabric.base import DeviceFabric, FabricClient, Outcome, Read, Write
from pykvpool.fabric.device_stager import Item, Stager, call
from pykvpool.fabric.tasks import run_all
from pykvpool.memory.cuda import GpuMemory
from pykvpool.memory.device import DevicePiece
from pykvpool.runtime import Offload

_log = logging.getLogger("pykvpool.fabric.gpu")
#: Log lines about ways, one for each GPU, fabric and reason; after so many, no more.
MAX_WAYS_LOGGED = 64
STAGED_ON_DEMAND = 'verify = "staged": the CPU is to see every byte'


class Mover(Protocol):
    """What the router needs."""

    async def move(self, client: FabricClient, batch: Sequence[Read | Write], timeout_s: float) -> list[Outcome]: ...

    async def close(self) -> None: ...


class DeviceMover:
    """Moves GPU memory for one client. `staged_only`: the host sees every byte, whatever the NIC could do."""

    def __init__(self, gpu: GpuMemory, offload: Offload, *, staged_only: bool = False) -> None:
        self._gpu = gpu
        self._stager = Stager(gpu, offload)
        self._staged_only = staged_only
        #: Ways that the log knows of. A dict: it keeps order.
        self._logged: dict[tuple[int, str, str], None] = {}
        self._closed: Closed | None = None
        #: Waits for an engine (closing pulls their deadlines in), moves under way, and whether there are none.
        self._waits: dict[asyncio.Timeout, None] = {}
        self._moves = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def move(self, client: FabricClient, batch: Sequence[Read | Write], timeout_s: float) -> list[Outcome]:
        """One outcome per operation, in order. All are reads or all are writes, and each has GPU memory."""
        self._moves += 1
        self._idle.clear()
        try:
            return await self._move(client, batch, timeout_s)
        finally:
            self._moves -= 1
            if not self._moves:
                self._idle.set()

    async def close(self) -> None:
        """What waits for an engine ends as `Closed`; returns when nothing moves. Close the fabrics first, so that what
        they carry ends too. Harmless twice."""
        self._closed = Closed("GPU memory is not moved any more: the session is over")
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            wait.reschedule(now)
        await self._idle.wait()

    async def _move(self, client: FabricClient, batch: Sequence[Read | Write], timeout_s: float) -> list[Outcome]:
        deadline = asyncio.get_running_loop().time() + timeout_s
        outcomes: list[Outcome | None] = [None] * len(batch)
        try:
            items = await self._prepare(batch, outcomes, timeout_s)
        except PoolError as error:
            return [outcome or Outcome(error=error, scheme=client.scheme) for outcome in outcomes]
        direct: list[Item] = []
        staged: list[Item] = []
        for item in items:
            (direct if self._goes_directly(client, item) else staged).append(item)
        work = await self._stager.work(client, staged, outcomes, deadline)
        if direct:
            work.append(partial(self._direct, client, direct, outcomes, deadline))
        await run_all([begin() for begin in work])
        nothing = Outcome(error=InternalError("an operation on GPU memory was left without an outcome"), settled=False)
        return [outcome or nothing for outcome in outcomes]

    async def _load(self) -> None:
        """Raises `InvalidArgument`: what is missing here is missing for every fabric, so none other need be tried."""
        try:
            await self._gpu.load()
        except NotSupported as missing:
            raise InvalidArgument(missing.message) from missing

    # -- before anything moves -------------------------------------------------------------------------------------

    async def _prepare(
        self, batch: Sequence[Read | Write], outcomes: list[Outcome | None], timeout_s: float
    ) -> list[Item]:
        """What can be moved, when it can be; the others have outcomes. Raises where nothing can."""
        self._check_open()
        try:
            async with asyncio.timeout(timeout_s) as wait:
                self._waits[wait] = None
                try:
                    await self._load()
                    return await self._usable(self._located(batch, outcomes), outcomes)
                finally:
                    del self._waits[wait]
        except TimeoutError:
            self._check_open()
            raise DeadlineExceeded(
                f"the engine's GPU work was not done within {timeout_s:g} s: nothing was moved"
            ) from None

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _located(self, batch: Sequence[Read | Write], outcomes: list[Outcome | None]) -> list[Item]:
        items = []
        for index, operation in enumerate(batch):
            try:
                items.append(Item(index, operation, self._ordinal(operation)))
            except (InvalidArgument, GpuFailed) as error:
                outcomes[index] = Outcome(error=error)
        return items

    def _ordinal(self, operation: Read | Write) -> int:
        """The GPU whose memory it is. Raises `InvalidArgument`."""
        given = sum(piece.nbytes for piece in operation.device)
        if given != operation.length or operation.pieces:
            raise InvalidArgument(f"pieces of {given} bytes for an operation of {operation.length}")
        if isinstance(operation, Read):
            for piece in operation.device:
                if isinstance(piece, memoryview) and piece.readonly:
                    raise InvalidArgument("a piece to read into is read-only")
        ordinals = {
            self._gpu.locate(piece).ordinal
            for piece in operation.device
            if isinstance(piece, DevicePiece) and piece.nbytes
        }
        if len(ordinals) != 1:
            raise InvalidArgument(f"the pieces of one object are on {len(ordinals)} GPUs: they must be on one")
        return ordinals.pop()

    async def _usable(self, items: list[Item], outcomes: list[Outcome | None]) -> list[Item]:
        """Wait until the engine is done with the memory of all. Those whose GPU fails get their outcome."""
        usable: list[Item] = []
        for ordinal in dict.fromkeys(item.ordinal for item in items):
            mine = [item for item in items if item.ordinal == ordinal]
            try:
                await self._gpu.device(ordinal)
                after = await self._gpu.until_usable(ordinal, (piece for item in mine for piece in item.device_pieces))
            except (GpuFailed, InvalidArgument) as error:
                for item in mine:
                    outcomes[item.index] = Outcome(error=error)
                continue
            usable += [replace(item, after=after) for item in mine]
        return usable

    def _goes_directly(self, client: FabricClient, item: Item) -> bool:
        if self._staged_only:
            obstacle: str | None = STAGED_ON_DEMAND
        elif isinstance(client, DeviceFabric):
            obstacle = client.device_obstacle(item.operation)
            if obstacle is None:
                self._log_way(item, client.scheme, f"directly, {client.device_path(item.operation)}")
                return True
        else:
            obstacle = f"the {client.scheme} fabric moves host memory only"
        self._log_way(item, client.scheme, f"staged through pinned host memory: {obstacle}")
        return False

    def _log_way(self, item: Item, scheme: str, way: str) -> None:
        key = (item.ordinal, scheme, way)
        if key not in self._logged and len(self._logged) < MAX_WAYS_LOGGED:
            self._logged[key] = None
            name = self._gpu.facts(item.ordinal).name
            _log.info("blocks of GPU %d (%s) go over %s %s", item.ordinal, name, scheme, way)

    # -- directly --------------------------------------------------------------------------------------------------

    async def _direct(
        self, client: FabricClient, items: Sequence[Item], outcomes: list[Outcome | None], deadline: float
    ) -> None:
        results = await call(client, [item.operation for item in items], deadline)
        failures: dict[int, GpuFailed] = {}
        if isinstance(items[0].operation, Read):
            for ordinal in dict.fromkeys(item.ordinal for item in items):
                try:
                    (await self._gpu.device(ordinal)).flush()
                except GpuFailed as error:
                    failures[ordinal] = error
        for item, outcome in zip(items, results, strict=True):
            failure = failures.get(item.ordinal)
            if outcome.error is None and failure is not None:
                outcome = Outcome(error=failure, scheme=outcome.scheme)
            outcomes[item.index] = outcome
