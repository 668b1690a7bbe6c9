"""Staging: waves of operations on GPU memory, each through slots of pinned memory and over any fabric.

A write's bytes are copied into slots, then the fabric takes them from there; a read's arrive in slots, then they are
copied to the GPU. Small operations share a wave; one that is larger than a wave goes part by part. All waves are begun
at once and wait for slots in order, so that one is copied while another is on the network.

Slots are given back when both the copies and the transfer are over, which is when `CopyQueue.copy` and the fabric's
call return or raise. Copies that are adrift, and ends that nobody foresaw, break the ring instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import xxhash

from pykvpool.errors import DeadlineExceeded, InternalError, PoolError
from pykvpool.fabric.base import FabricClient, Outcome, Read, Write
from pykvpool.memory.cuda import GpuMemory, Staging
from pykvpool.memory.cuda_copies import Adrift, Direction
from pykvpool.memory.cuda_ring import Layout, Run, Slots
from pykvpool.memory.device import DevicePiece, cut
from pykvpool.runtime import Offload

#: The ring is cut into this many waves: one is copied while the other is on the network.
WAVES = 2

#: Begins a part of the work; it notes the outcomes of its operations.
Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Item:
    """An operation on its way: the GPU that its memory is on, and the events its copies come after."""

    index: int
    operation: Read | Write
    ordinal: int
    after: Sequence[int] = ()

    @property
    def device_pieces(self) -> list[DevicePiece]:
        return [piece for piece in self.operation.device if isinstance(piece, DevicePiece)]


class Stager:
    """Stages the GPU memory of one client."""

    def __init__(self, gpu: GpuMemory, offload: Offload) -> None:
        self._gpu = gpu
        self._offload = offload

    async def work(
        self, client: FabricClient, items: Sequence[Item], outcomes: list[Outcome | None], deadline: float
    ) -> list[Work]:
        """What is to be run at once: neighbours that fit into a wave of their ring together, what is larger alone."""
        work: list[Work] = []
        for ordinal in dict.fromkeys(item.ordinal for item in items):
            mine = [item for item in items if item.ordinal == ordinal]
            try:
                staging = await self._gpu.staging(ordinal)
            except PoolError as error:
                for item in mine:
                    outcomes[item.index] = Outcome(error=error)
                continue
            most = max(1, staging.ring.slots // WAVES)
            wave: list[Item] = []
            slots = 0
            for item in mine:
                needed = staging.ring.slots_for(item.operation.device)
                if needed > most:
                    work.append(partial(self._large, client, staging, item, most, outcomes, deadline))
                    continue
                if slots + needed > most:
                    work.append(partial(self._wave, client, staging, wave, outcomes, deadline))
                    wave, slots = [], 0
                wave.append(item)
                slots += needed
            if wave:
                work.append(partial(self._wave, client, staging, wave, outcomes, deadline))
        return work

    async def _wave(
        self,
        client: FabricClient,
        staging: Staging,
        items: Sequence[Item],
        outcomes: list[Outcome | None],
        deadline: float,
    ) -> None:
        results = await self._try(client, staging, items, deadline)
        for item, result in zip(items, results, strict=True):
            outcomes[item.index] = result

    async def _large(
        self,
        client: FabricClient,
        staging: Staging,
        item: Item,
        most_slots: int,
        outcomes: list[Outcome | None],
        deadline: float,
    ) -> None:
        """An object larger than a wave, part by part; its checksum is taken here, over all parts."""
        operation = item.operation
        total = xxhash.xxh3_64() if operation.want_checksum else None
        part_bytes = most_slots * staging.ring.slot_bytes
        for start in range(0, operation.length, part_bytes):
            length = min(part_bytes, operation.length - start)
            part = replace(
                operation,
                offset=operation.offset + start,
                length=length,
                device=cut(operation.device, start, length),
                want_checksum=False,
            )
            [result] = await self._try(client, staging, [replace(item, operation=part)], deadline, total)
            if result.error is not None:
                outcomes[item.index] = result
                return
        outcomes[item.index] = replace(result, checksum=None if total is None else total.intdigest())

    async def _try(
        self,
        client: FabricClient,
        staging: Staging,
        items: Sequence[Item],
        deadline: float,
        total: xxhash.xxh3_64 | None = None,
    ) -> list[Outcome]:
        try:
            return await self._through_ring(client, staging, items, deadline, total)
        except TimeoutError:
            error: PoolError = DeadlineExceeded("the deadline passed while a transfer waited for pinned memory")
        except PoolError as failed:
            error = failed
        return [Outcome(error=error, scheme=client.scheme) for _ in items]

    async def _through_ring(
        self,
        client: FabricClient,
        staging: Staging,
        items: Sequence[Item],
        deadline: float,
        total: xxhash.xxh3_64 | None,
    ) -> list[Outcome]:
        """Operations that fit into the ring. Raises `PoolError` where nothing can land in the pool."""
        ring = staging.ring
        async with asyncio.timeout_at(deadline):
            slots = await ring.acquire(sum(ring.slots_for(item.operation.device) for item in items))
        try:
            results = await self._transfer(client, staging, slots, items, deadline, total)
        except (PoolError, asyncio.CancelledError) as error:
            if isinstance(error, Adrift):
                staging.broke(error)
            else:
                ring.release(slots)  # copies and transfer are over: both end before they raise
            raise
        except BaseException as error:
            staging.broke(InternalError(f"staging ended in a way that was not foreseen: {error}"))
            raise
        ring.release(slots)
        return results

    async def _transfer(
        self,
        client: FabricClient,
        staging: Staging,
        slots: Slots,
        items: Sequence[Item],
        deadline: float,
        total: xxhash.xxh3_64 | None,
    ) -> list[Outcome]:
        layouts = [slots.lay_out(item.operation.device) for item in items]
        operations = [
            replace(item.operation, pieces=layout.pieces, device=())
            for item, layout in zip(items, layouts, strict=True)
        ]
        after = tuple(dict.fromkeys(event for item in items for event in item.after))
        if isinstance(operations[0], Write):
            await staging.copies.copy(Direction.TO_HOST, _runs(layouts), after)
            await self._sum(total, layouts)
            return await call(client, operations, deadline)
        results = await call(client, operations, deadline)
        arrived = [layout for layout, result in zip(layouts, results, strict=True) if result.error is None]
        await self._sum(total, arrived)
        await staging.copies.copy(Direction.TO_DEVICE, _runs(arrived), after)
        return results

    async def _sum(self, total: xxhash.xxh3_64 | None, layouts: Sequence[Layout]) -> None:
        if total is not None:
            await self._offload.run(_update, total, [piece for layout in layouts for piece in layout.pieces])


def _runs(layouts: Sequence[Layout]) -> list[Run]:
    return [run for layout in layouts for run in layout.runs]


def _update(total: xxhash.xxh3_64, pieces: Sequence[memoryview]) -> None:
    for piece in pieces:
        total.update(piece)


async def call(client: FabricClient, operations: Sequence[Read | Write], deadline: float) -> list[Outcome]:
    left_s = max(0.0, deadline - asyncio.get_running_loop().time())
    if isinstance(operations[0], Write):
        return await client.write(cast("Sequence[Write]", operations), left_s)
    return await client.read(cast("Sequence[Read]", operations), left_s)
