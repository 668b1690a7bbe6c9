"""What an owner, and a peer's map, decide for themselves: they believe nobody, and look again every time (P2, P5)."""

from __future__ import annotations

from pathlib import Path

from pykvpool.errors import InvalidArgument, SegmentGone, StalePut
from pykvpool.fabric.base import Peer, Write
from pykvpool.fabric.checks import refuse_operation
from pykvpool.fabric.exports import Export, ExportTable
from pykvpool.memory.segment import MemorySegment
from pykvpool.model.ids import Generation, NodeName, PutId, SegmentId
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import real_runtime
from tests.fabric.bench import BACKENDS, TIMEOUT_S, open_bench

SIZE = 4_096
WRITER, READER = Peer("writer", 1), Peer("reader", 2, writable=False)


def new_export() -> Export:
    return Export(MemorySegment(SIZE, real_runtime()))


def test_an_owner_refuses_a_reader_that_writes_whatever_that_reader_checked_itself() -> None:
    export = new_export()
    assert isinstance(export.refuse_write(READER, 0, 1, PutId(1)), InvalidArgument)
    assert export.refuse_write(WRITER, 0, 1, PutId(1)) is None
    export.memory.close()


def test_a_peer_that_may_only_read_refuses_to_write_before_anything_moves() -> None:
    segment = SegmentDescriptor(SegmentId(1), Generation(1), NodeName("n"), SIZE, ())
    write = Write(segment, 0, 1, [memoryview(b"x")], PutId(1))
    assert isinstance(refuse_operation(write, READER), InvalidArgument)
    assert refuse_operation(write, WRITER) is None


def test_p5_bounds_are_exact_to_the_byte() -> None:
    export = new_export()
    for offset, length in ((0, SIZE), (SIZE, 0), (SIZE - 1, 1)):
        assert export.refuse_range(offset, length) is None
    for offset, length in ((0, SIZE + 1), (SIZE, 1), (1, SIZE), (-1, 1), (0, -1)):
        assert isinstance(export.refuse_range(offset, length), InvalidArgument)
        assert isinstance(export.refuse_write(WRITER, offset, length, PutId(1)), InvalidArgument)
    export.memory.close()


def test_p2_a_write_that_is_refused_for_its_bounds_makes_no_other_one_stale() -> None:
    export = new_export()
    assert export.refuse_write(WRITER, 64, SIZE, PutId(9)) is not None
    assert export.refuse_write(WRITER, 64, 64, PutId(3)) is None
    assert isinstance(export.refuse_write(WRITER, 64, 64, PutId(2)), StalePut)
    export.memory.close()


def test_a_ban_is_for_one_incarnation() -> None:
    table = ExportTable()
    table.ban("writer", 1)
    assert table.is_banned(WRITER)
    assert not table.is_banned(Peer("writer", 2))
    assert not table.is_banned(READER)


async def test_p5_a_map_is_of_no_use_from_the_moment_its_generation_ends_whatever_its_owner_says_later(
    tmp_path: Path,
) -> None:
    """The control word alone ends it: an owner that died right after clearing it never sends its `Unmap`."""
    backend = next(each for each in BACKENDS if each.name == "shm")
    async with open_bench(backend, tmp_path) as bench:
        client = bench.client()
        assert (await client.write([bench.write(0, b"good")], TIMEOUT_S))[0].error is None
        bench.server._peers.clear()  # nobody is told
        await bench.server.withdraw(bench.segment.generation)
        (write,) = await client.write([bench.write(0, b"late")], TIMEOUT_S)
        (read,) = await client.read([bench.read(0, bytearray(4))], TIMEOUT_S)
        assert isinstance(write.error, SegmentGone)
        assert isinstance(read.error, SegmentGone)
        assert bytes(bench.memory.view[:4]) == b"good"
