"""GPU memory registered with a NIC: by the way that works, whole ranges, in chunks, and given back in time."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass

import pytest

from pykvpool.errors import GpuFailed
from pykvpool.fabric.gpu_direct import OF_NOBODY, GpuRegions
from pykvpool.fabric.verbs import Access, Piece, VerbsError
from pykvpool.memory.cuda import GpuMemory
from pykvpool.memory.device import DevicePiece
from pykvpool.runtime import ThreadOffload
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


@dataclass
class Bench:
    gpu: FakeGpu
    memory: GpuMemory
    domain: Domain
    regions: GpuRegions


@pytest.fixture
def make(offload):
    def make(domain: Domain, gpu: FakeGpu | None = None, max_mr_bytes: int = 1 << 30, peer_memory: bool = False):
        gpu = gpu or FakeGpu()
        gpu.retain(0)
        memory = GpuMemory(offload, load=lambda: gpu)
        return Bench(gpu, memory, domain, GpuRegions(domain, "mlx0", max_mr_bytes, memory, peer_memory))

    return make


def registered(bench: Bench, size: int) -> DevicePiece:
    return bench.memory.register(bench.gpu.tensor(bytes(size)).piece).piece


async def test_a_registered_range_is_exported_and_given_to_the_nic_whole_at_the_first_question(make) -> None:
    bench = make(Domain())
    piece = registered(bench, 10_000)
    assert bench.regions.obstacle(piece[100:200]) is None
    assert bench.regions.obstacle(piece[9_000:]) is None
    [region] = bench.domain.regions
    assert (region.way, region.address, region.length, region.access) == (
        "dma-buf",
        piece.address,
        10_000,
        Access.LOCAL_WRITE,
    )
    assert bench.regions.pieces(piece[100:200]) == [Piece(piece.address + 100, 100, region.lkey)]
    assert bench.regions.path(piece) == "mlx0 by dma-buf"


async def test_an_export_holds_whole_pages_and_the_region_begins_where_the_range_does(make) -> None:
    bench = make(Domain())
    piece = bench.gpu.tensor(bytes(20_000)).piece[5_000:15_000]
    bench.memory.register(piece)
    assert bench.regions.obstacle(piece) is None
    [call] = [call for call in bench.gpu.calls if call[0] == "export_dma_buf"]
    assert call[1:] == (piece.address - 904, 12_288)
    [region] = bench.domain.regions
    assert (region.offset, region.address, region.length) == (904, piece.address, 10_000)


async def test_the_exports_descriptor_is_closed_once_the_nic_holds_the_buffer(make) -> None:
    bench = make(Domain())
    bench.regions.obstacle(registered(bench, 100))
    [fd] = bench.domain.dead_fds
    with pytest.raises(OSError):
        os.fstat(fd)


async def test_a_large_range_is_registered_in_chunks_below_the_devices_limit(make) -> None:
    bench = make(Domain(), max_mr_bytes=CHUNK + 5)
    piece = bench.gpu.tensor(bytes(3 * CHUNK)).piece[100:]
    bench.memory.register(piece)
    assert bench.regions.obstacle(piece) is None
    sizes = [region.length for region in bench.domain.regions]
    assert max(sizes) <= CHUNK + 5 and sum(sizes) == 3 * CHUNK - 100
    seam = bench.domain.regions[1].address - piece.address
    parts = bench.regions.pieces(piece[seam - 10 : seam + 20])
    assert parts == [
        Piece(piece.address + seam - 10, 10, bench.domain.regions[0].lkey),
        Piece(piece.address + seam, 20, bench.domain.regions[1].lkey),
    ]


async def test_where_the_nic_takes_no_dma_buf_the_older_way_is_tried(make, caplog) -> None:
    caplog.set_level(logging.INFO, "pykvpool.fabric.gpu")
    bench = make(Domain("dma-buf"), peer_memory=True)
    piece = registered(bench, 100)
    assert bench.regions.obstacle(piece) is None
    assert [region.way for region in bench.domain.regions] == ["peer memory"]
    [line] = caplog.records
    assert line.getMessage() == "GPU 0 (Fake GPU): mlx0 reaches its memory by itself, by peer memory"


async def test_where_nothing_works_the_obstacle_names_each_try_and_the_log_says_it_once(make, caplog) -> None:
    caplog.set_level(logging.INFO, "pykvpool.fabric.gpu")
    bench = make(Domain("dma-buf"))
    piece = registered(bench, 100)
    obstacle = bench.regions.obstacle(piece)
    assert obstacle is not None
    assert "nvidia-peermem is not loaded" in obstacle
    assert "dma-buf: registering by dma-buf on mlx0: Operation not supported" in obstacle
    assert bench.regions.obstacle(piece[1:]) == obstacle
    assert len(caplog.records) == 1 and "staged" in caplog.records[0].getMessage()
    with pytest.raises(GpuFailed, match="no registration"):
        bench.regions.pieces(piece)


async def test_a_refusal_half_way_gives_back_what_was_registered(make) -> None:
    bench = make(Domain(room=2), max_mr_bytes=CHUNK)
    piece = registered(bench, 4 * CHUNK)
    assert bench.regions.obstacle(piece) is not None
    assert len(bench.domain.regions) == 2 and not bench.domain.open


async def test_a_driver_that_exports_nothing_is_an_obstacle_and_no_error(make) -> None:
    bench = make(Domain())
    bench.gpu.broken["export_dma_buf"] = 0
    obstacle = bench.regions.obstacle(registered(bench, 100))
    assert obstacle is not None and "export_dma_buf" in obstacle


async def test_memory_that_nobody_registered_is_not_tried(make) -> None:
    bench = make(Domain())
    assert bench.regions.obstacle(bench.gpu.tensor(b"1").piece) == OF_NOBODY
    assert not bench.domain.regions


async def test_a_gpu_that_no_nic_may_reach_is_not_tried(make) -> None:
    bench = make(Domain(), FakeGpu(facts(direct=False)), peer_memory=True)
    assert "does not support GPUDirect" in str(bench.regions.obstacle(registered(bench, 100)))
    assert not bench.domain.regions


async def test_unregistering_gives_the_nics_registration_back_first(make) -> None:
    bench = make(Domain())
    held = bench.memory.register(bench.gpu.tensor(bytes(100)).piece)
    bench.regions.obstacle(held.piece)
    bench.memory.unregister(held)
    assert not bench.domain.open
    assert bench.regions.obstacle(held.piece) == OF_NOBODY


async def test_closing_gives_everything_back_and_hears_no_more(make) -> None:
    bench = make(Domain())
    held = [bench.memory.register(bench.gpu.tensor(bytes(100)).piece) for _ in range(3)]
    for each in held:
        bench.regions.obstacle(each.piece)
    bench.regions.close()
    bench.regions.close()
    assert not bench.domain.open
    bench.memory.unregister(held[0])
