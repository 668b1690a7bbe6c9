"""Copies move exactly the bytes asked for, however they are cut, or refuse before the first."""

from __future__ import annotations

from itertools import pairwise

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import InvalidArgument
from pykvpool.memory.copying import CHUNK_BYTES, Stop, Stopped, checksum, copy, copy_pieces, pinned


def cut(data: bytes | bytearray, seams: list[int]) -> list[memoryview]:
    """Pieces of `data`, cut at `seams` (taken modulo its length)."""
    points = sorted({seam % (len(data) + 1) for seam in seams} | {0, len(data)})
    view = memoryview(data)
    return [view[start:end] for start, end in pairwise(points)] or [view]


@given(st.binary(max_size=300), st.lists(st.integers(0, 999), max_size=6), st.lists(st.integers(0, 999), max_size=6))
def test_scatter_and_gather_agree_however_both_sides_are_cut(data: bytes, left: list[int], right: list[int]) -> None:
    target = bytearray(len(data))
    found = copy_pieces(cut(target, left), cut(data, right), want_checksum=True)
    assert bytes(target) == data
    assert found == xxhash.xxh3_64_intdigest(data)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 17])
def test_a_copy_larger_than_a_chunk_is_whole_and_its_sum_is_that_of_the_bytes(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    source = memoryview(data)[:size]
    target = bytearray(size)
    assert copy_pieces([memoryview(target)], [source], want_checksum=True) == xxhash.xxh3_64_intdigest(source)
    assert target == source
    assert copy_pieces([memoryview(target)], [source]) is None


def test_a_copy_never_touches_what_lies_beside_it() -> None:
    target = bytearray(b"\xee" * (2 * CHUNK_BYTES + 64))
    copy(memoryview(target)[32:-32], memoryview(bytes(2 * CHUNK_BYTES)))
    assert target[:32] == target[-32:] == b"\xee" * 32
    assert not any(target[32:-32])


@pytest.mark.parametrize(("target", "source"), [(4, 5), (5, 4), (0, 1)])
def test_lengths_that_differ_are_refused_and_nothing_is_written(target: int, source: int) -> None:
    into = bytearray(target)
    with pytest.raises(InvalidArgument):
        copy(memoryview(into), memoryview(b"x" * source))
    with pytest.raises(InvalidArgument):
        copy_pieces([memoryview(into)], [memoryview(b"x" * source)])
    assert into == bytes(target)


def test_a_read_only_target_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        copy(memoryview(b"abc"), memoryview(b"xyz"))
    with pytest.raises(InvalidArgument):
        copy_pieces([memoryview(bytearray(3)), memoryview(b"abc")], [memoryview(b"xyzxyz")])


def test_a_stop_ends_a_copy_between_chunks() -> None:
    stop = Stop()
    stop.requested = True
    target = bytearray(4 * CHUNK_BYTES)
    with pytest.raises(Stopped):
        copy_pieces([memoryview(target)], [memoryview(b"\1" * len(target))], stop=stop)
    assert not any(target)


def test_a_pinned_buffer_can_be_neither_resized_nor_released() -> None:
    data = bytearray(8)
    view = memoryview(data)
    with pinned(view, writable=True) as address:
        assert address
        with pytest.raises(BufferError):
            view.release()
    view.release()
    data.append(1)


def test_what_is_no_contiguous_buffer_cannot_be_pinned() -> None:
    for buffer in (memoryview(bytes(8))[::2], object()):
        with pytest.raises(InvalidArgument), pinned(buffer):  # type: ignore[arg-type]
            raise AssertionError("pinned")


def test_the_checksum_of_pieces_is_that_of_their_bytes_in_order() -> None:
    assert checksum([memoryview(b"ab"), memoryview(b""), memoryview(b"c")]) == xxhash.xxh3_64_intdigest(b"abc")
    assert checksum([]) == xxhash.xxh3_64_intdigest(b"")
