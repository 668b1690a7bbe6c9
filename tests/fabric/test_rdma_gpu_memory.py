"""GPU memory registered with a card: by the way that works, whole ranges, in chunks, and given back in time.

Then, on fake cards whose queue pairs move bytes, blocks go from a GPU to the pool past every CPU.
"""

from __future__ import annotations

import errno
import logging
import os
import random
from dataclasses import dataclass

import pytest

from pykvpool.errors import GpuFailed
from pykvpool.fabric.base import Outcome, Peer, Read, Write
from pykvpool.fabric.device_mover import DeviceMover
from pykvpool.fabric.rdma.client import RdmaClient
from pykvpool.fabric.rdma.gpu_memory import OF_NOBODY, GpuRegistrations
from pykvpool.fabric.rdma.server import RdmaServer
from pykvpool.fabric.rdma.settings import RdmaSettings
from pykvpool.fabric.router import Router
from pykvpool.fabric.verbs import Access, Piece, VerbsError
from pykvpool.memory.copying import checksum
from pykvpool.memory.cuda import GpuMemory
from pykvpool.memory.device import DevicePiece
from pykvpool.memory.segment import MemorySegment
from pykvpool.model.ids import NodeName, PutId, SegmentId
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import ThreadOffload, real_runtime
from tests.fabric.fake_verbs import FakeVerbs
from tests.memory.fake_gpu import FakeGpu, facts

CHUNK = 64 * 1024


@dataclass
class Region:
    domain: Domain
    way: str
    address: int
    length: int
    access: Access
    lkey: int
    offset: int = 0
    rkey: int = 0
    closed: bool = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class Domain:
    """A protection domain that keeps what it was asked to register. `refuses`: ways it does not take."""

    def __init__(self, *refuses: str, room: int = 1_000) -> None:
        self.refuses = refuses
        self.room = room
        self.regions: list[Region] = []
        self.dead_fds: list[int] = []

    def register(self, address: int, length: int, access: Access) -> Region:
        return self._add("peer memory", address, length, access)

    def register_dmabuf(self, fd: int, offset: int, length: int, address: int, access: Access) -> Region:
        os.fstat(fd)  # it is open
        self.dead_fds.append(fd)
        return self._add("dma-buf", address, length, access, offset)

    def _add(self, way: str, address: int, length: int, access: Access, offset: int = 0) -> Region:
        if way in self.refuses or len(self.open) >= self.room:
            raise VerbsError(f"registering by {way}", "mlx0", errno.EOPNOTSUPP, "Operation not supported")
        region = Region(self, way, address, length, access, 100 + len(self.regions), offset)
        self.regions.append(region)
        return region

    @property
    def open(self) -> list[Region]:
        return [region for region in self.regions if not region.closed]


@pytest.fixture
def offload():
    made = ThreadOffload(1)
    yield made
    made.close()


class Card:
    """What a `Device` is to registrations."""

    failure = None

    def __init__(self, name: str, domain: Domain) -> None:
        self.name = name
        self.domain = domain

    def let_go(self, close) -> None:
        close()


class Bench:
    """One GPU, some cards, and what a client of theirs keeps."""

    def __init__(self, offload: ThreadOffload, gpu: FakeGpu, domains: list[Domain], chunk: int, peer_memory: bool):
        self.gpu = gpu
        gpu.retain(0)
        self.memory = GpuMemory(offload, load=lambda: gpu)
        self.cards = [Card(f"mlx{number}", domain) for number, domain in enumerate(domains)]
        self.domain = domains[0]
        self.kept = GpuRegistrations(
            self.memory, lambda size: min(chunk, size), lambda card: card.domain, peer_memory=peer_memory
        )

    def registered(self, size: int) -> DevicePiece:
        return self.memory.register(self.gpu.tensor(bytes(size)).piece).piece

    def obstacle(self, piece: DevicePiece) -> str | None:
        return self.kept.obstacle(piece, self.cards)


@pytest.fixture
def make(offload):
    def make(*domains: Domain, gpu: FakeGpu | None = None, chunk: int = 1 << 30, peer_memory: bool = False) -> Bench:
        return Bench(offload, gpu or FakeGpu(), list(domains) or [Domain()], chunk, peer_memory)

    return make


async def test_a_registered_range_is_exported_and_given_to_the_card_whole_at_the_first_question(make) -> None:
    bench = make()
    piece = bench.registered(10_000)
    assert bench.obstacle(piece[100:200]) is None
    assert bench.obstacle(piece[9_000:]) is None
    [region] = bench.domain.regions
    assert (region.way, region.address, region.length, region.access) == (
        "dma-buf",
        piece.address,
        10_000,
        Access.LOCAL_WRITE,
    )
    assert bench.kept.path(piece) == "mlx0 by dma-buf"
    registration = bench.kept.find(piece[100:200])
    assert registration.piece(bench.cards[0], bench.domain, piece.address + 100, 5) == Piece(
        piece.address + 100, 5, region.lkey
    )


async def test_an_export_holds_whole_pages_and_the_region_begins_where_the_range_does(make) -> None:
    bench = make()
    piece = bench.gpu.tensor(bytes(20_000)).piece[5_000:15_000]
    bench.memory.register(piece)
    assert bench.obstacle(piece) is None
    [call] = [call for call in bench.gpu.calls if call[0] == "export_dma_buf"]
    assert call[1:] == (piece.address - 904, 12_288)
    [region] = bench.domain.regions
    assert (region.offset, region.address, region.length) == (904, piece.address, 10_000)


async def test_the_exports_descriptor_is_closed_once_the_card_holds_the_buffer(make) -> None:
    bench = make()
    bench.obstacle(bench.registered(100))
    [fd] = bench.domain.dead_fds
    with pytest.raises(OSError):
        os.fstat(fd)


@pytest.mark.parametrize("refused", ["", "dma-buf"])
async def test_a_large_range_is_registered_in_chunks(make, refused: str) -> None:
    bench = make(Domain(refused), chunk=CHUNK, peer_memory=True)
    piece = bench.registered(3 * CHUNK + 7)
    assert bench.obstacle(piece) is None
    assert [region.length for region in bench.domain.regions] == [CHUNK, CHUNK, CHUNK, 7]
    registration = bench.kept.find(piece)
    offsets = (0, CHUNK, 3 * CHUNK)
    pieces = [registration.piece(bench.cards[0], bench.domain, piece.address + offset, 1) for offset in offsets]
    assert [found.lkey for found in pieces] == [bench.domain.regions[chunk].lkey for chunk in (0, 1, 3)]
    assert registration.room(piece.address + CHUNK - 10) == 10


async def test_where_the_card_takes_no_dma_buf_the_older_way_is_tried(make, caplog) -> None:
    caplog.set_level(logging.DEBUG, "pykvpool.fabric.gpu")
    bench = make(Domain("dma-buf"), peer_memory=True)
    assert bench.obstacle(bench.registered(100)) is None
    assert [region.way for region in bench.domain.regions] == ["peer memory"]
    [line] = caplog.records
    assert line.getMessage() == "GPU 0 (Fake GPU): mlx0 reaches its memory by peer memory"


async def test_where_nothing_works_the_obstacle_names_each_try_and_the_log_says_it_once(make, caplog) -> None:
    caplog.set_level(logging.DEBUG, "pykvpool.fabric.gpu")
    bench = make(Domain("dma-buf"))
    piece = bench.registered(100)
    obstacle = bench.obstacle(piece)
    assert obstacle is not None and obstacle.startswith("mlx0: ")
    assert "nvidia-peermem is not loaded" in obstacle
    assert "dma-buf: registering by dma-buf on mlx0: Operation not supported" in obstacle
    assert bench.obstacle(piece[1:]) == obstacle
    assert len(caplog.records) == 1 and "out of reach of mlx0" in caplog.records[0].getMessage()


async def test_every_rail_must_reach_the_memory(make) -> None:
    bench = make(Domain(), Domain("dma-buf"))
    obstacle = bench.obstacle(bench.registered(100))
    assert obstacle is not None and obstacle.startswith("mlx1: ")


async def test_a_rail_that_comes_later_is_asked_then(make) -> None:
    bench = make(Domain(), Domain())
    piece = bench.registered(100)
    assert bench.kept.obstacle(piece, bench.cards[:1]) is None
    assert not bench.cards[1].domain.regions
    assert bench.obstacle(piece) is None
    assert len(bench.cards[1].domain.regions) == 1
    assert bench.kept.path(piece) == "mlx0 by dma-buf, mlx1 by dma-buf"


@pytest.mark.parametrize("refused", ["", "dma-buf"])
async def test_a_refusal_half_way_gives_back_what_was_registered(make, refused: str) -> None:
    bench = make(Domain(refused, room=2), chunk=CHUNK, peer_memory=bool(refused))
    assert bench.obstacle(bench.registered(4 * CHUNK)) is not None
    assert len(bench.domain.regions) == 2 and not bench.domain.open


async def test_a_driver_that_exports_nothing_is_an_obstacle_and_no_error(make) -> None:
    bench = make()
    bench.gpu.broken["export_dma_buf"] = 0
    obstacle = bench.obstacle(bench.registered(100))
    assert obstacle is not None and "export_dma_buf" in obstacle


async def test_memory_that_nobody_registered_is_not_tried(make) -> None:
    bench = make()
    piece = bench.gpu.tensor(b"1").piece
    assert bench.obstacle(piece) == OF_NOBODY
    assert not bench.domain.regions
    with pytest.raises(GpuFailed, match="was unregistered"):
        bench.kept.find(piece)


async def test_a_gpu_that_no_card_may_reach_is_not_tried(make) -> None:
    bench = make(gpu=FakeGpu(facts(direct=False)), peer_memory=True)
    assert "does not support GPUDirect" in str(bench.obstacle(bench.registered(100)))
    assert not bench.domain.regions


async def test_unregistering_gives_the_cards_registration_back(make) -> None:
    bench = make()
    held = bench.memory.register(bench.gpu.tensor(bytes(100)).piece)
    bench.obstacle(held.piece)
    bench.memory.unregister(held)
    assert not bench.domain.open
    assert bench.obstacle(held.piece) == OF_NOBODY


async def test_p2_a_range_that_is_taken_back_while_a_card_moves_it_stays_registered_until_it_is_done(make) -> None:
    bench = make()
    held = bench.memory.register(bench.gpu.tensor(bytes(100)).piece)
    bench.obstacle(held.piece)
    registration = bench.kept.find(held.piece)
    registration.use()
    bench.memory.unregister(held)
    assert len(bench.domain.open) == 1
    registration.done()
    assert not bench.domain.open


async def test_a_device_that_goes_takes_its_registrations_and_obstacles_with_it(make) -> None:
    bench = make(Domain(), Domain("dma-buf"))
    piece = bench.registered(100)
    assert bench.obstacle(piece) is not None
    for card in bench.cards:
        bench.kept.detach(card)
    assert not bench.domain.open
    bench.cards[1].domain.refuses = ()
    assert bench.obstacle(piece) is None


async def test_a_device_that_goes_takes_what_was_taken_back_and_is_still_moved(make) -> None:
    bench = make()
    held = bench.memory.register(bench.gpu.tensor(bytes(100)).piece)
    bench.obstacle(held.piece)
    registration = bench.kept.find(held.piece)
    registration.use()
    bench.memory.unregister(held)
    bench.kept.detach(bench.cards[0])
    assert not bench.domain.open
    registration.done()


async def test_closing_hears_no_more(make) -> None:
    bench = make()
    held = bench.memory.register(bench.gpu.tensor(bytes(100)).piece)
    bench.obstacle(held.piece)
    bench.kept.detach(bench.cards[0])
    bench.kept.close()
    bench.memory.unregister(held)
    assert not bench.domain.open


# -- from a GPU to the pool, on fake cards -------------------------------------------------------------------------

MIB = 1 << 20


class Rig:
    """An owner and a client with two cards each, and a GPU whose memory the fake cards can address."""

    def __init__(self, *, peer_memory: bool) -> None:
        self.verbs = FakeVerbs("near0", "near1", "far0", "far1")
        self.runtime = real_runtime()
        self.server = RdmaServer(self.runtime, settings=RdmaSettings(("far0", "far1"), verbs=self.verbs))
        self.gpu = FakeGpu()
        self.gpu.reachable = True
        self.memory = GpuMemory(self.runtime.offload, load=lambda: self.gpu, ring_bytes=MIB, slot_bytes=64 * 1024)
        settings = RdmaSettings(("near0", "near1"), verbs=self.verbs)
        self.client = RdmaClient(Peer("engine", 1), self.runtime, settings=settings, gpu=self.memory)
        self.client._memory.gpu._peer_memory = peer_memory
        self.mover = DeviceMover(self.memory, self.runtime.offload)
        self.router = Router([self.client], self.runtime.clock, self.mover)

    async def __aenter__(self) -> Rig:
        await self.server.start()
        self.segment_memory = MemorySegment(16 * MIB, self.runtime)
        endpoint = self.server.export(self.segment_memory)
        self.segment = SegmentDescriptor(
            SegmentId(1), self.segment_memory.generation, NodeName("owner"), 16 * MIB, (endpoint,)
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.router.close()
        self.memory.close()
        await self.server.close()
        self.segment_memory.close()
        self.runtime.offload.close()

    async def write(self, pieces: list, offset: int = 0) -> Outcome:
        length = sum(piece.nbytes for piece in pieces)
        [outcome] = await self.router.write([Write(self.segment, offset, length, (), PutId(1), device=pieces)], 20)
        return outcome

    async def read(self, pieces: list, offset: int = 0) -> Outcome:
        length = sum(piece.nbytes for piece in pieces)
        [outcome] = await self.router.read([Read(self.segment, offset, length, (), device=pieces)], 20)
        return outcome

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.gpu.names() if name.startswith(prefix)]


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


async def test_blocks_go_from_a_gpu_to_the_pool_and_back_past_every_cpu() -> None:
    async with Rig(peer_memory=True) as rig:
        data = noise(5 * MIB + 3)
        source, target = rig.gpu.tensor(data), rig.gpu.tensor(bytes(len(data)))
        for tensor in (source, target):
            rig.memory.register(tensor.piece)
        assert await rig.write([source.piece], offset=7) == Outcome(checksum=None, scheme="rdma")
        assert bytes(rig.segment_memory.view[7 : 7 + len(data)]) == data
        assert await rig.read([target.piece], offset=7) == Outcome(checksum=None, scheme="rdma")
        assert bytes(target) == data
        assert not rig.names("copy_to") and not rig.names("allocate_host")
        assert rig.gpu.names()[-1] == "flush_writes"


@pytest.mark.parametrize("dma_buf", ["by address", "by offset"])
@pytest.mark.parametrize("chunk", [1 << 40, MIB])
async def test_p1_blocks_go_by_dma_buf_whatever_addresses_a_binding_gives_it(dma_buf: str, chunk: int) -> None:
    """pyverbs names the first byte of a dma-buf by its offset there; the other binding, by the GPU's address."""
    async with Rig(peer_memory=False) as rig:
        for name in ("near0", "near1"):
            rig.verbs[name].dma_buf = dma_buf
            rig.verbs[name].set_limits(max_mr_size_bytes=chunk)
        data = noise(5 * MIB + 3)
        source, target = rig.gpu.tensor(data), rig.gpu.tensor(bytes(len(data)))
        for tensor in (source, target):
            rig.memory.register(tensor.piece)
        pairs = len(rig.verbs["near0"].pairs)
        assert await rig.write([source.piece[11:]], offset=7) == Outcome(checksum=None, scheme="rdma")
        assert bytes(rig.segment_memory.view[7 : 7 + len(data) - 11]) == data[11:]
        assert await rig.read([target.piece[11:]], offset=7) == Outcome(checksum=None, scheme="rdma")
        assert bytes(target)[11:] == data[11:]
        assert rig.verbs["near0"].calls["register_dmabuf"] and not rig.names("copy_to")
        assert pairs == 0 and rig.verbs["near0"].calls["close queue pair"] == 0, "no request was refused"


async def test_a_header_in_host_memory_goes_along() -> None:
    async with Rig(peer_memory=True) as rig:
        layers = [rig.gpu.tensor(noise(200_000, layer)) for layer in range(4)]
        for layer in layers:
            rig.memory.register(layer.piece)
        pieces = [memoryview(b"header"), *(layer.piece[1_000:150_000] for layer in layers)]
        assert (await rig.write(pieces)).error is None
        whole = b"header" + b"".join(bytes(layer)[1_000:150_000] for layer in layers)
        assert bytes(rig.segment_memory.view[: len(whole)]) == whole
        header, target = bytearray(6), rig.gpu.tensor(bytes(len(whole) - 6))
        rig.memory.register(target.piece)
        assert (await rig.read([memoryview(header), target.piece])).error is None
        assert bytes(header) + bytes(target) == whole


@pytest.mark.parametrize("registered", [True, False])
async def test_what_the_cards_cannot_reach_is_staged_and_still_goes_by_rdma(registered: bool) -> None:
    async with Rig(peer_memory=False) as rig:  # fake cards take no dma-buf either
        data = noise(3 * MIB + 1)
        source, target = rig.gpu.tensor(data), rig.gpu.tensor(bytes(len(data)))
        if registered:
            rig.memory.register(source.piece)
            rig.memory.register(target.piece)
        outcome = await rig.write([source.piece])
        assert outcome == Outcome(checksum=checksum([memoryview(data)]), scheme="rdma")
        assert (await rig.read([target.piece])).error is None
        assert bytes(target) == data
        assert rig.names("copy_to_host") and rig.names("copy_to_device")


async def test_host_memory_that_is_named_as_device_memory_moves_no_byte_by_itself() -> None:
    async with Rig(peer_memory=True) as rig:
        [outcome] = await rig.client.write(
            [Write(rig.segment, 0, 4, (), PutId(1), device=[rig.gpu.tensor(b"1234").piece])], 20
        )
        assert isinstance(outcome.error, GpuFailed) and outcome.settled  # it was never asked for an obstacle


async def test_a_dead_card_is_survived_with_gpu_memory_too() -> None:
    async with Rig(peer_memory=True) as rig:
        data = noise(6 * MIB)
        source = rig.gpu.tensor(data)
        rig.memory.register(source.piece)
        assert (await rig.write([source.piece])).error is None
        rig.verbs["near1"].drop()
        assert (await rig.write([source.piece], offset=6 * MIB)).error is None
        assert bytes(rig.segment_memory.view[6 * MIB : 12 * MIB]) == data
