"""The first part of the conformance suite: bytes arrive whole; what is wrong is refused, one operation at a time."""

from __future__ import annotations

import asyncio
import random

import pytest
import xxhash

from pykvpool.errors import InvalidArgument, PoolError, SegmentGone, StalePut
from pykvpool.fabric.base import Outcome, Peer, Read, Write
from pykvpool.model.ids import Generation, PutId
from pykvpool.model.objects import SegmentDescriptor
from tests.fabric.bench import BIG_BYTES, SEGMENT_BYTES, TIMEOUT_S, Backend, Bench, replace_endpoint


def errors_of(outcomes: list[Outcome]) -> list[type[PoolError] | None]:
    return [None if outcome.error is None else type(outcome.error) for outcome in outcomes]


def odd_pieces(data: bytearray, draw: random.Random) -> list[memoryview]:
    """`data` cut into pieces of odd sizes, empty ones among them."""
    pieces, offset = [], 0
    while offset < len(data):
        size = draw.choice([0, 1, 7, 4097, 65_537, 300_001])
        pieces.append(memoryview(data)[offset : offset + size])
        offset += size
    return pieces


class Moves:
    """Each test is given a `bench`, and the `backend` where it asks."""

    @pytest.mark.parametrize("size", [1, 4096, 64 * 1024 + 1, BIG_BYTES])
    async def test_what_was_written_is_read_back_with_its_checksum(self, bench: Bench, size: int) -> None:
        client = bench.client()
        data = random.Random(size).randbytes(size)
        (written,) = await client.write([bench.write(4096, data)], TIMEOUT_S)
        assert written == Outcome(checksum=xxhash.xxh3_64_intdigest(data), scheme=bench.backend.scheme)
        assert bench.memory.view[4096 : 4096 + size] == data
        target = bytearray(size)
        (read,) = await client.read([bench.read(4096, target)], TIMEOUT_S)
        assert read == written
        assert target == data

    async def test_pieces_of_any_size_are_gathered_and_scattered_in_order(self, bench: Bench) -> None:
        client = bench.client()
        draw = random.Random(7)
        source = bytearray(draw.randbytes(3_000_001))
        target = bytearray(len(source))
        write = Write(bench.segment, 333, len(source), odd_pieces(source, draw), PutId(1))
        read = Read(bench.segment, 333, len(source), odd_pieces(target, draw))
        (written,) = await client.write([write], TIMEOUT_S)
        (outcome,) = await client.read([read], TIMEOUT_S)
        assert (written.error, outcome.error) == (None, None)
        assert target == source
        assert outcome.checksum == written.checksum == xxhash.xxh3_64_intdigest(source)

    async def test_a_batch_of_thousands_of_operations_is_one_call(self, bench: Bench) -> None:
        client = bench.client()
        blocks = [index.to_bytes(4, "big") * 16 for index in range(5_000)]
        written = await client.write([bench.write(64 * i, block) for i, block in enumerate(blocks)], TIMEOUT_S)
        assert errors_of(written) == [None] * 5_000
        targets = [bytearray(64) for _ in blocks]
        order = list(range(5_000))
        random.Random(3).shuffle(order)
        read = await client.read([bench.read(64 * i, targets[i]) for i in order], TIMEOUT_S)
        assert errors_of(read) == [None] * 5_000
        assert targets == blocks
        assert [outcome.checksum for outcome in read] == [written[i].checksum for i in order]

    async def test_nothing_to_do_is_done_at_once(self, bench: Bench) -> None:
        client = bench.client()
        assert await client.read([], TIMEOUT_S) == []
        assert await client.write([], TIMEOUT_S) == []
        assert errors_of(await client.write([bench.write(SEGMENT_BYTES, b"")], TIMEOUT_S)) == [None]
        assert errors_of(await client.read([bench.read(0, bytearray())], TIMEOUT_S)) == [None]

    async def test_a_checksum_that_was_not_asked_for_is_not_computed(self, bench: Bench) -> None:
        client = bench.client()
        (written,) = await client.write([bench.write(0, b"abc", want_checksum=False)], TIMEOUT_S)
        (read,) = await client.read([bench.read(0, bytearray(3), want_checksum=False)], TIMEOUT_S)
        assert written.checksum is read.checksum is None

    async def test_one_batch_may_span_several_mounts(self, bench: Bench) -> None:
        client = bench.client()
        other, segment = bench.mount(4096)
        batch = [bench.write(0, b"one"), bench.write(0, b"two", segment=segment), bench.write(9, b"three")]
        assert errors_of(await client.write(batch, TIMEOUT_S)) == [None] * 3
        assert bytes(bench.memory.view[:14]) == b"one\0\0\0\0\0\0three"
        assert bytes(other.view[:3]) == b"two"

    async def test_many_peers_at_once_do_not_disturb_each_other(self, bench: Bench) -> None:
        async def work(number: int) -> None:
            client = bench.client()
            data = random.Random(number).randbytes(100_000)
            target = bytearray(len(data))
            for turn in range(4):
                offset = number * 200_000 + turn
                assert errors_of(await client.write([bench.write(offset, data)], TIMEOUT_S)) == [None]
                assert errors_of(await client.read([bench.read(offset, target)], TIMEOUT_S)) == [None]
                assert target == data

        await asyncio.gather(*(work(number) for number in range(12)))

    async def test_p5_a_descriptor_of_another_generation_reaches_nothing(self, bench: Bench) -> None:
        client = bench.client()
        old = bench.segment
        stale = SegmentDescriptor(old.segment, Generation(old.generation ^ 2), old.node, old.size_bytes, old.endpoints)
        target = bytearray(b"\xee" * 3)
        batch = [bench.read(0, target, segment=stale), bench.read(0, bytearray(3))]
        assert errors_of(await client.read(batch, TIMEOUT_S)) == [SegmentGone, None]
        assert target == b"\xee" * 3
        (written,) = await client.write([bench.write(0, b"abc", segment=stale)], TIMEOUT_S)
        assert isinstance(written.error, SegmentGone)
        assert written.settled
        assert not any(bench.memory.view[:3])

    @pytest.mark.parametrize(("offset", "size"), [(SEGMENT_BYTES - 4, 5), (SEGMENT_BYTES, 1), (1 << 61, 8), (-1, 2)])
    async def test_what_lies_outside_is_refused_alone(self, bench: Bench, offset: int, size: int) -> None:
        client = bench.client()
        batch = [bench.write(0, b"abc"), bench.write(offset, b"x" * size), bench.write(8, b"def")]
        assert errors_of(await client.write(batch, TIMEOUT_S)) == [None, InvalidArgument, None]
        targets = [bytearray(3), bytearray(b"\xee" * size), bytearray(3)]
        batch_read = [bench.read(0, targets[0]), bench.read(offset, targets[1]), bench.read(8, targets[2])]
        assert errors_of(await client.read(batch_read, TIMEOUT_S)) == [None, InvalidArgument, None]
        assert targets == [b"abc", b"\xee" * size, b"def"]
        assert not any(bench.memory.view[-8:])

    async def test_p2_a_straggler_of_an_older_put_is_refused_and_the_rest_goes_on(
        self, bench: Bench, backend: Backend
    ) -> None:
        client = bench.client()
        big = b"n" * 700_000
        assert errors_of(await client.write([bench.write(0, big, put_id=5)], TIMEOUT_S)) == [None]
        batch = [bench.write(0, b"o" * 700_000, put_id=4), bench.write(800_000, b"x", put_id=4)]
        outcomes = errors_of(await client.write(batch, TIMEOUT_S))
        if backend.owner_is_asked:
            assert outcomes == [StalePut, None]
            assert bench.memory.view[: len(big)] == big
        else:
            assert outcomes == [None, None], "nobody judges put_ids where the owner is not asked: fencing must do"
        assert errors_of(await client.write([bench.write(0, b"again", put_id=5)], TIMEOUT_S)) == [None]

    async def test_a_reader_reads_and_may_not_write(self, bench: Bench) -> None:
        bench.memory.view[:3] = b"abc"
        reader = bench.client(Peer("reader", 9, writable=False))
        target = bytearray(3)
        assert errors_of(await reader.read([bench.read(0, target)], TIMEOUT_S)) == [None]
        assert target == b"abc"
        (written,) = await reader.write([bench.write(0, b"xyz")], TIMEOUT_S)
        assert isinstance(written.error, InvalidArgument)
        assert bytes(bench.memory.view[:3]) == b"abc"

    async def test_pieces_that_do_not_fit_are_refused_before_anything_moves(self, bench: Bench) -> None:
        client = bench.client()
        short = Write(bench.segment, 0, 4, [memoryview(b"abc")], PutId(1))
        strided = Write(bench.segment, 0, 2, [memoryview(b"abcd")[::2]], PutId(1))
        assert errors_of(await client.write([short, strided], TIMEOUT_S)) == [InvalidArgument, InvalidArgument]
        read_only = Read(bench.segment, 0, 3, [memoryview(b"abc")])
        assert errors_of(await client.read([read_only], TIMEOUT_S)) == [InvalidArgument]
        assert not any(bench.memory.view[:8])

    async def test_a_segment_that_is_elsewhere_is_not_reached(self, bench: Bench) -> None:
        client = bench.client()
        assert client.reaches(bench.segment) == bench.segment.endpoints[0]
        elsewhere = replace_endpoint(bench.segment, "elsewhere://nowhere")
        assert client.reaches(elsewhere) is None
        (outcome,) = await client.read([bench.read(0, bytearray(1), segment=elsewhere)], TIMEOUT_S)
        assert outcome.error is not None

    async def test_a_view_shows_the_segment_itself_and_cannot_change_it(self, bench: Bench, backend: Backend) -> None:
        client = bench.client()
        view = await client.map_view(bench.segment, 4096, 5)  # type: ignore[attr-defined]
        if not backend.zero_copy:
            assert view is None
            return
        assert view.readonly
        bench.memory.view[4096:4101] = b"fresh"
        assert bytes(view) == b"fresh"
        with pytest.raises(InvalidArgument):
            await client.map_view(bench.segment, SEGMENT_BYTES, 1)  # type: ignore[attr-defined]
        await bench.server.withdraw(bench.segment.generation)
        try:
            later = await client.map_view(bench.segment, 0, 1)  # type: ignore[attr-defined]
        except SegmentGone:
            later = None
        assert later is None
        view.release()
