"""Everything at once, from seeds: transfers of all sizes under devices that fail, go and come, fences, cancelled
callers and refused registrations. What was acknowledged is there, buffers are their owners' afterwards, and nothing is
left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from pykvpool.errors import PoolError
from pykvpool.fabric.base import Peer, Read, Write
from pykvpool.fabric.rdma.client import RdmaClient
from pykvpool.fabric.verbs import Status
from pykvpool.model.ids import PutId
from tests.fabric.bench import jump
from tests.fabric.fake_rnic import FakeDevice
from tests.fabric.rdma_stage import MIB, Stage, stage, turns

SIZES = (1, 7, 500, 4096, 5000, 100_000, 262_144, 300_001, MIB, 2 * MIB + 3)
#: Each writer has a range of its own.
RANGE_BYTES = 4 * MIB
STATUSES = (Status.RETRY_EXCEEDED, Status.REMOTE_ACCESS, Status.LOCAL_QP_OPERATION, Status.FLUSHED)


class Writer:
    """Writes to its own range and reads it back, knowing what must be there."""

    def __init__(self, here: Stage, client: RdmaClient, number: int, draw: random.Random) -> None:
        self.here = here
        self.client = client
        self.start = number * RANGE_BYTES
        self.draw = draw
        #: What is at the start of the range; None where nobody can know.
        self.content: bytes | None = None

    async def work(self, times: int) -> None:
        for _ in range(times):
            if self.content is None or self.draw.random() < 0.5:
                await self.write()
            else:
                await self.read()

    async def write(self) -> None:
        size = self.draw.choice(SIZES)
        data = bytearray(self.draw.randbytes(size))
        pieces = self.pieces(data)
        registered = self.here.buffers.register(data) if self.draw.random() < 0.3 else None
        write = Write(self.here.segment, self.start, size, pieces, PutId(1))
        self.content = None
        ended = await self.perhaps_cancelled(self.client.write([write], 5.0))
        expected = bytes(data)
        if registered is not None:
            self.here.buffers.unregister(registered)
        data[:] = b"\xee" * size  # it is the caller's again: nothing of this may land
        there = self.here.memory.view[self.start : self.start + size]
        if ended is None or ended[0].error is not None:
            assert ended is None or isinstance(ended[0].error, PoolError)
            seen = bytes(there)
            await turns(5)
            assert ended is None or not ended[0].settled or there == seen, "what is settled lands no more"
            assert b"\xee" * 8 not in bytes(there)
        else:
            self.content = expected
            assert there == expected

    async def read(self) -> None:
        assert self.content is not None
        into = bytearray(len(self.content))
        read = Read(self.here.segment, self.start, len(into), self.pieces(into))
        ended = await self.perhaps_cancelled(self.client.read([read], 5.0))
        if ended is not None and ended[0].error is None:
            assert into == self.content
        into[:] = bytes(len(into))
        await turns(3)
        assert not any(into), "nothing arrives late"

    def pieces(self, data: bytearray) -> list[memoryview]:
        view = memoryview(data)
        cuts = sorted(self.draw.sample(range(len(data) + 1), min(len(data), self.draw.randint(0, 4))))
        return [view[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    async def perhaps_cancelled(self, transfer):
        task = asyncio.ensure_future(transfer)
        if self.draw.random() < 0.15:
            await turns(self.draw.randint(0, 12))
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return None


async def storm(here: Stage, draw: random.Random, over: Callable[[], bool]) -> None:
    cards = here.cards
    while not over():
        await turns(draw.randint(1, 20))
        card = draw.choice(cards)
        match draw.randrange(9):
            case 0 | 1:
                card.fail_next(draw.choice(STATUSES), skip=draw.randint(0, 3))
            case 2:
                card.set_port(up=not card.up)
            case 3 if not card.gone:
                card.drop(vanished=draw.random() < 0.5)
            case 4:
                restore(card)
            case 5:
                card.refuse_next_registration()
            case 6:
                name, number = draw.choice((("peer", 1), ("second", 2)))
                await here.server.fence(name, number, here.segment.generation, ban=False)
            case 7:
                jump(draw.choice((6, 40)))
            case _:
                for near in here.near:
                    near.hold()
                await turns(draw.randint(1, 10))
                for near in here.near:
                    near.release()
        if not any(each.up and not each.gone for each in here.near):
            restore(here.near[0])
        if not any(each.up and not each.gone for each in here.far):
            restore(here.far[0])


def restore(card: FakeDevice) -> None:
    card.gone = card.vanished = False
    card.set_port(up=True)


@pytest.mark.parametrize("seed", range(12))
async def test_p1_p2_bytes_stay_right_whatever_happens_to_the_devices(seed: int) -> None:
    draw = random.Random(seed)
    async with stage(queue_pairs=draw.choice((1, 2))) as here:
        clients = [here.client, here.another(Peer("second", 2))]
        writers = [Writer(here, clients[number % 2], number, random.Random(seed * 100 + number)) for number in range(4)]
        working = asyncio.ensure_future(asyncio.gather(*(writer.work(12) for writer in writers)))
        await storm(here, draw, working.done)
        await working
        for card in here.cards:
            restore(card)
            card._failures.clear()
            card._refusals.clear()
        jump(60)
        for writer in writers:
            writer.draw = random.Random(1)
            for _ in range(4):
                await writer.write()
                jump(60)
            assert writer.content is not None, "it all works again"
