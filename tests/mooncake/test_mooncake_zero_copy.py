"""The zero-copy calls make no copy that the fabric does not need: counted at the fabric, by address and by byte."""

from __future__ import annotations

import ctypes
import tracemalloc

import pytest

from pykvpool.fabric import local
from pykvpool.memory.copying import pinned
from pykvpool_connector.mooncake import MooncakeDistributedStore

MIB = 1 << 20
SIZE = 8 * MIB


def address_of(piece: memoryview) -> int:
    with pinned(piece) as address:
        return address


class Copies:
    """Every copy that the local fabrics make: bytes, and where they came from and went to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[list[int], list[int], int]] = []
        real = local.copy_pieces

        def counted(targets, sources, **options):
            size = sum(piece.nbytes for piece in sources)
            self.made.append(([address_of(p) for p in targets], [address_of(p) for p in sources], size))
            return real(targets, sources, **options)

        monkeypatch.setattr(local, "copy_pieces", counted)

    @property
    def bytes(self) -> int:
        return sum(size for _, _, size in self.made)


@pytest.fixture
def store(master):
    made = MooncakeDistributedStore()
    assert made.setup("localhost", "P2PHANDSHAKE", 64 * MIB, 16 * MIB, "tcp", "", master) == 0
    made.remove_all(True)
    yield made
    made.close()


@pytest.fixture
def memory(store):
    block = (ctypes.c_ubyte * (2 * SIZE))()
    address = ctypes.addressof(block)
    assert store.register_buffer(address, 2 * SIZE) == 0
    yield address
    del block


@pytest.fixture
def copies(store, monkeypatch):
    return Copies(monkeypatch)


def test_put_from_is_one_copy_from_the_callers_memory_into_the_segment(store, memory, copies):
    assert store.put_from("k", memory, SIZE) == 0
    [(_, sources, size)] = copies.made
    assert (sources, size) == ([memory], SIZE)


def test_get_into_is_one_copy_from_the_segment_into_the_callers_memory(store, memory, copies):
    store.put_from("k", memory, SIZE)
    copies.made.clear()
    assert store.get_into("k", memory + SIZE, SIZE) == SIZE
    [(targets, _, size)] = copies.made
    assert (targets, size) == ([memory + SIZE], SIZE)


def test_many_buffers_are_gathered_and_scattered_by_the_fabric_itself(store, memory, copies):
    pieces = [memory + i * 65536 for i in range(64)]
    assert store.batch_put_from_multi_buffers(["k"], [pieces[::-1]], [[65536] * 64]) == [0]
    assert copies.made[0][1] == pieces[::-1]
    targets = [address + SIZE for address in pieces]
    assert store.batch_get_into_multi_buffers(["k"], [targets], [[65536] * 64]) == [64 * 65536]
    assert copies.made[1][0] == targets
    assert copies.bytes == 2 * 64 * 65536


def test_ranges_move_their_own_bytes_and_no_others(store, memory, copies):
    store.put_from("k", memory, SIZE)
    copies.made.clear()
    assert store.get_into_ranges([memory], [["k"]], [[[SIZE, SIZE + 100]]], [[[7, MIB]]], [[[50, 60]]]) == [[[50, 60]]]
    assert sorted(targets for targets, _, _ in copies.made) == [[memory + SIZE], [memory + SIZE + 100]]
    assert copies.bytes == 110


def test_put_and_get_of_bytes_are_one_copy_each_too(store, copies):
    value = bytes(SIZE)
    assert store.put("k", value) == 0
    assert store.get("k") == value
    assert store.get_buffer("k").size() == SIZE
    assert copies.bytes == 3 * SIZE
    assert copies.made[0][1] == [address_of(memoryview(value))]


def test_zero_copy_calls_allocate_nothing_of_the_size_of_the_object(store, memory):
    tracemalloc.start()
    try:
        assert store.put_from("k", memory, SIZE) == 0
        assert store.get_into("k", memory + SIZE, SIZE) == SIZE
        assert store.upsert_from("k", memory, SIZE) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < SIZE // 8


def test_a_second_copy_on_another_node_is_one_more_and_a_put_that_exists_is_none(store, memory, master, copies):
    from pykvpool_connector.mooncake import ReplicateConfig

    other = MooncakeDistributedStore()
    assert other.setup("localhost", "P2PHANDSHAKE", 64 * MIB, 0, "tcp", "", master) == 0
    config = ReplicateConfig(replica_num=2)
    assert store.put_from("two", memory, SIZE, config) == 0
    assert [sources for _, sources, _ in copies.made] == [[memory], [memory]]
    assert store.put_from("two", memory, SIZE, config) == 0
    assert len(copies.made) == 2
    other.close()
