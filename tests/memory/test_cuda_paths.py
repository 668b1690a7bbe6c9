"""Which ways a NIC could take into GPU memory, and what is said of those that it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykvpool.memory.cuda_driver import Allocation, WriteOrdering
from pykvpool.memory.cuda_paths import Way, has_peer_memory, page_range, ways_for
from tests.memory.fake_gpu import facts

PLAIN = Allocation(0, 0x1000, 0x1000, managed=False, direct=True)


def test_dma_buf_comes_before_peer_memory() -> None:
    ways = ways_for(facts(), PLAIN, peer_memory=True)
    assert ways.usable == (Way.DMA_BUF, Way.PEER_MEMORY) and not ways.obstacles


def test_each_way_that_is_missing_says_what_it_would_take() -> None:
    ways = ways_for(facts(dma_buf=False), PLAIN, peer_memory=False)
    assert not ways.usable
    assert "open kernel modules" in ways.obstacles[0] and "nvidia-peermem" in ways.obstacles[1]


@pytest.mark.parametrize(
    ("gpu", "allocation", "reason"),
    [
        (facts(direct=False), PLAIN, "does not support GPUDirect"),
        (facts(), Allocation(0, 0, 1, managed=True, direct=True), "managed"),
        (facts(), Allocation(0, 0, 1, managed=False, direct=False), "gpuDirectRDMACapable"),
        (facts(ordering=WriteOrdering.NONE, can_flush=False), PLAIN, "neither order nor flush"),
    ],
)
def test_where_no_nic_may_reach_the_memory_no_way_is_tried(gpu, allocation: Allocation, reason: str) -> None:
    ways = ways_for(gpu, allocation, peer_memory=True)
    assert not ways.usable
    assert reason in ways.obstacles[0]


def test_a_gpu_that_orders_writes_itself_needs_no_flush() -> None:
    assert ways_for(facts(ordering=WriteOrdering.OWNER, can_flush=False), PLAIN, peer_memory=False).usable


@pytest.mark.parametrize(
    ("address", "size", "expected"),
    [(0, 4096, (0, 4096, 0)), (5000, 10, (4096, 4096, 904)), (8191, 2, (4096, 8192, 4095)), (4096, 1, (4096, 4096, 0))],
)
def test_an_export_is_widened_to_whole_pages(address: int, size: int, expected: tuple[int, int, int]) -> None:
    found = page_range(address, size, 4096)
    assert (found.address, found.size_bytes, found.offset) == expected


@pytest.mark.parametrize("module", ["nvidia_peermem", "nv_peer_mem"])
def test_the_module_for_the_older_way_is_found_where_the_kernel_shows_it(tmp_path: Path, module: str) -> None:
    assert not has_peer_memory(tmp_path)
    (tmp_path / "sys" / "module" / module).mkdir(parents=True)
    assert has_peer_memory(tmp_path)
