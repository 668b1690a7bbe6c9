"""A segment is zeroed, sealed, its own generation, and gone when closed."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from pykvpool.errors import Closed, ConfigError
from pykvpool.memory.available import available_bytes
from pykvpool.memory.segment import MAX_SEGMENT_BYTES, MemorySegment
from pykvpool.runtime import real_runtime


def test_a_segment_is_whole_pages_of_zeroed_writable_memory() -> None:
    segment = MemorySegment(5000, real_runtime())
    assert segment.size_bytes == 8192
    assert bytes(segment.view) == bytes(8192)
    segment.view[8191] = 7
    assert os.pread(segment.fileno(), 1, 8191) == b"\x07"
    segment.close()


def test_a_memfd_can_neither_shrink_nor_grow_so_that_no_map_of_it_can_fault() -> None:
    segment = MemorySegment(4096, real_runtime())
    for size in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fileno(), size)
    segment.close()


def test_p5_every_mount_draws_a_generation_of_its_own() -> None:
    runtime = real_runtime()
    segments = [MemorySegment(4096, runtime) for _ in range(20)]
    assert len({segment.generation for segment in segments}) == 20
    for segment in segments:
        segment.close()


def test_closing_twice_is_harmless_and_use_afterwards_is_a_clear_error() -> None:
    segment = MemorySegment(4096, real_runtime())
    fd = segment.fileno()
    segment.close()
    segment.close()
    assert segment.closed
    assert segment.fileno() == -1
    with pytest.raises(Closed):
        _ = segment.view
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_slice_that_somebody_still_holds_outlives_the_segment() -> None:
    segment = MemorySegment(4096, real_runtime())
    segment.view[:3] = b"abc"
    held = segment.view[:3]
    segment.close()
    assert bytes(held) == b"abc"


@pytest.mark.parametrize("prefault", [False, True])
@pytest.mark.parametrize("shareable", [False, True])
def test_plain_memory_works_like_a_memfd_but_has_no_descriptor(shareable: bool, prefault: bool) -> None:
    segment = MemorySegment(3 * mmap.PAGESIZE, real_runtime(), shareable=shareable, prefault=prefault)
    assert (segment.fileno() >= 0) == shareable
    assert not any(segment.view)
    segment.close()


@pytest.mark.parametrize("size", [0, -1, MAX_SEGMENT_BYTES + 1])
def test_a_size_out_of_range_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=str(size)):
        MemorySegment(size, real_runtime())


def test_memory_that_is_not_there_is_refused_with_both_numbers() -> None:
    available = available_bytes()
    assert available is not None
    with pytest.raises(ConfigError, match="available: ") as refused:
        MemorySegment(MAX_SEGMENT_BYTES, real_runtime())
    assert refused.value.fields["size_bytes"] == MAX_SEGMENT_BYTES
    assert refused.value.fields["available_bytes"] is not None


def test_a_container_limit_counts_where_it_is_tighter_than_the_host(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroup / "pod" / "box").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 800 kB\n")
    (proc / "self" / "cgroup").write_text("0::/pod/box\n")
    (cgroup / "pod" / "box" / "memory.max").write_text("max\n")
    assert available_bytes(proc, cgroup) == 800 * 1024
    (cgroup / "pod" / "memory.max").write_text("500000\n")
    (cgroup / "pod" / "memory.current").write_text("100000\n")
    assert available_bytes(proc, cgroup) == 400_000


def test_a_system_that_tells_nothing_is_not_an_error(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) is None


@pytest.mark.parametrize("content", [b"\xff\xfe", b"MemAvailable:", b"MemAvailable: much kB"])
def test_a_file_that_no_kernel_wrote_tells_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "self").mkdir()
    for name in ("meminfo", "self/cgroup"):
        (tmp_path / name).write_bytes(content)
    assert available_bytes(tmp_path, tmp_path / "nowhere") is None
