"""Parts of objects: only they are moved, and what cannot be believed or does not exist is an error of that part."""

from __future__ import annotations

from pykvpool.client.reader import GetJob, Reader, Window
from pykvpool.errors import InvalidArgument, KeyNotFound
from pykvpool.memory.copying import checksum
from pykvpool.model.commands import GetReplicas, Release
from pykvpool.model.objects import ObjectInfo, Vouch
from pykvpool.model.replies import Done, ErrorInfo, Located
from tests.client.fakes import SEGMENT, Bench, extent

VALUE = bytes(range(100))


async def read(*wanted):
    """Read (key, offset, length) parts; results, what arrived, and the bench."""
    found = ObjectInfo(3, len(VALUE), checksum([memoryview(VALUE)]), (extent(SEGMENT, 64, len(VALUE)),))
    missing = ErrorInfo.of(KeyNotFound("no"))

    def answer(command):
        return Located(tuple(found if hash_ == b"k" else missing for hash_ in command.hashes), lease=8, lease_ms=10_000)

    bench = Bench({GetReplicas: [answer], Release: [Done()]})
    bench.router.memory[99][64 : 64 + len(VALUE)] = VALUE
    moved = []
    bench.router.before = lambda operation: moved.append((operation.offset, operation.length))
    targets = [bytearray(max(0, length)) for _, _, length in wanted]
    jobs = [
        GetJob(key, "k", lambda size, target=target: [memoryview(target)], Window(offset, length))
        for (key, offset, length), target in zip(wanted, targets, strict=True)
    ]
    await Reader(bench.link, bench.fabrics, bench.statistics).get(1, jobs, bench.deadline_ms)
    await bench.end()
    return [job.result for job in jobs], targets, moved, bench


async def test_only_the_parts_are_moved():
    results, targets, moved, _ = await read((b"k", 10, 5), (b"k", 90, 10))
    assert [result.size_bytes for result in results] == [5, 10]
    assert targets == [VALUE[10:15], VALUE[90:]]
    assert moved == [(74, 5), (154, 10)]


async def test_the_lease_alone_vouches_for_a_part_and_the_checksum_for_a_part_that_is_the_whole():
    [part, whole], _, _, _ = await read((b"k", 0, 99), (b"k", 0, 100))
    assert (part.vouch, whole.vouch) == (Vouch.LEASE, Vouch.CHECKSUM)


async def test_a_part_beyond_the_object_or_of_a_missing_one_is_an_error_of_its_own():
    results, targets, moved, _ = await read((b"k", 95, 6), (b"k", -1, 2), (b"x", 0, 1), (b"k", 1, 1), (b"k", 0, -1))
    assert [type(result) for result in results[:3]] == [InvalidArgument, InvalidArgument, KeyNotFound]
    assert isinstance(results[4], InvalidArgument)
    assert targets[3] == VALUE[1:2]
    assert len(moved) == 1


async def test_many_parts_of_one_object_ask_for_it_and_lease_it_once():
    _, _, _, bench = await read(*[(b"k", position, 1) for position in range(50)])
    assert [command.hashes for command in bench.session.of(GetReplicas)] == [(b"k",)]


async def test_a_part_of_no_bytes_of_an_object_that_is_there_is_fine():
    [nothing, missing], _, moved, _ = await read((b"k", 100, 0), (b"x", 0, 0))
    assert nothing.size_bytes == 0
    assert isinstance(missing, KeyNotFound)
    assert moved == []
