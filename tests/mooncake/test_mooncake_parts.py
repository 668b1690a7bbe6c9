"""The parts that need no pool: stored tensors, shards, memory maps, handles, configs, checks."""

from __future__ import annotations

import ctypes
import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import InvalidArgument, KeyNotFound, NotSupported
from pykvpool.model.objects import Pin
from pykvpool_connector.mooncake import MooncakeHostMemAllocator, ParallelAxis, ReplicateConfig, TensorParallelism
from pykvpool_connector.mooncake.checks import check_keys, key_to_find, value_piece
from pykvpool_connector.mooncake.enums import SoftPinAction
from pykvpool_connector.mooncake.handles import BufferHandle
from pykvpool_connector.mooncake.host_memory import bind_to_numa_node, cpu_numbers
from pykvpool_connector.mooncake.pointers import Pointers, is_own_memory
from pykvpool_connector.mooncake.shards import checked_axes, part_of, partition_axes, shard_key
from pykvpool_connector.mooncake.tensor_format import DTYPES, HEADER_BYTES, ITEM_BYTES, Axis, TensorHeader, parse

axes_of = st.lists(
    st.builds(
        Axis,
        kind=st.sampled_from(["tp", "dp", "ep", "pp"]),
        rank=st.integers(0, 1000),
        size=st.integers(1, 1000),
        split_dim=st.none() | st.integers(0, 7),
        expert_id=st.none() | st.integers(0, 1000),
        stage_id=st.none() | st.integers(0, 1000),
    ),
    max_size=5,
)


@given(dtype=st.sampled_from(sorted(DTYPES)), shape=st.lists(st.integers(0, 5), max_size=8), axes=axes_of)
def test_a_tensors_header_says_what_was_written(dtype, shape, axes):
    header = TensorHeader(dtype, tuple(length * 2 for length in shape), tuple(shape), tuple(axes))
    raw = bytearray(header.pack()) + bytes(header.data_bytes)
    assert len(raw) == header.object_bytes
    assert parse(memoryview(raw)) == header


@given(st.binary(max_size=400))
def test_bytes_that_are_no_tensor_are_refused(raw):
    with pytest.raises(InvalidArgument):
        parse(memoryview(raw))


@given(position=st.integers(0, HEADER_BYTES - 1), byte=st.integers(0, 255))
def test_a_damaged_header_is_refused_or_means_what_it_says(position, byte):
    raw = bytearray(TensorHeader("int16", (4, 6), (2, 6), (Axis("tp", 1, 2, 0),)).pack()) + bytes(24)
    raw[position] = byte
    try:
        header = parse(memoryview(raw))
    except InvalidArgument:
        return
    assert header.object_bytes <= len(raw)


def test_every_dtype_has_a_size():
    assert DTYPES.keys() == ITEM_BYTES.keys()


def test_what_the_header_has_no_room_for_is_refused():
    with pytest.raises(InvalidArgument):
        TensorHeader("int8", (1,) * 9, (1,) * 9).pack()
    with pytest.raises(NotSupported):
        TensorHeader("complex64", (1,), (1,)).pack()


def test_keys_of_shards_tell_shards_apart_and_do_not_depend_on_the_order_of_axes():
    dp, tp = Axis("dp", 0, 2), Axis("tp", 1, 2, 0)
    keys = {shard_key("k", axes) for axes in [(), (dp,), (tp,), (dp, tp), (Axis("ep", 0, 2, None, 3),)]}
    assert len(keys) == 5
    assert shard_key("k", (tp,)) == "k_tp_1"
    assert shard_key("k", (dp, tp)) == shard_key("k", (tp, dp)) == "k__dp_0of2__tp_1of2_sd0"


@pytest.mark.parametrize(
    "axes",
    [
        [],
        [ParallelAxis("xx", 0, 1)],
        [ParallelAxis("tp", 2, 2, 0)],
        [ParallelAxis("tp", -1, 2, 0)],
        [ParallelAxis("tp", 0, 2)],
        [ParallelAxis("dp", 0, 2)] * 2,
        [ParallelAxis("dp", 0, 2)] * 6,
    ],
)
def test_axes_that_name_no_shard_are_refused(axes):
    with pytest.raises(InvalidArgument):
        checked_axes(TensorParallelism(axes))


def test_a_writer_partition_may_be_written_in_three_ways():
    class Partition:
        rank, size, split_dim = 1, 2, 0

    wanted = (Axis("tp", 1, 2, 0),)
    for given_as in (Partition(), {"rank": 1, "size": 2, "split_dim": 0}, (1, 2, 0)):
        assert partition_axes(given_as) == wanted
    for wrong in (object(), {}, (1, 2), "x"):
        with pytest.raises(InvalidArgument):
            partition_axes(wrong)


def test_parts_are_equal_or_there_are_none():
    assert [part_of((4, 6), Axis("tp", rank, 3, 1)) for rank in range(3)] == [(0, 2), (2, 2), (4, 2)]
    for shape, size, dimension in (((5,), 2, 0), ((4,), 2, 1), ((2,), 4, 0), ((4,), 2, -1)):
        with pytest.raises(InvalidArgument):
            part_of(shape, Axis("tp", 0, size, dimension))


def test_only_memory_that_is_ours_to_write_may_be_registered(tmp_path):
    block = bytearray(10_000)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    assert is_own_memory(address, 10_000)
    assert not is_own_memory(0x10, 8)
    readonly = mmap.mmap(-1, 3 * mmap.PAGESIZE, prot=mmap.PROT_READ)
    pointers = Pointers()
    fake = tmp_path / "maps"
    fake.write_text("1000-2000 rw-p 0 0:0 0\n2000-3000 rw-p 0 0:0 0\n3000-4000 r--p 0 0:0 0\n5000-6000 rw-p 0 0:0 0\n")
    assert is_own_memory(0x1000, 0x2000, fake)
    assert not is_own_memory(0x1000, 0x2001, fake)
    assert not is_own_memory(0x5800, 0x1000, fake)
    assert not is_own_memory(0x4000, 1, fake)
    readonly.close()
    for start, size in ((0, 10), (address, 0), (address, -1), (-5, 10), (0x10, 8)):
        with pytest.raises(InvalidArgument):
            pointers.register(start, size)
    for wrong in (1.5, None, "x"):
        with pytest.raises(TypeError):
            pointers.register(wrong, 10)


def test_a_pointer_is_good_only_within_one_registered_buffer():
    block = bytearray(b"0123456789")
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    pointers = Pointers()
    pointers.register(address, 6)
    assert bytes(pointers.find(address + 2, 4)) == b"2345"
    pointers.register(address + 6, 4)
    for start, size in ((address + 4, 4), (address - 1, 2), (address + 9, 2)):
        with pytest.raises(InvalidArgument):
            pointers.find(start, size)
    pointers.unregister(address)
    with pytest.raises(InvalidArgument):
        pointers.find(address, 1)
    with pytest.raises(InvalidArgument):
        pointers.unregister(address)


def test_a_handle_is_memory_with_an_address():
    handle = BufferHandle.of_size(5)
    handle[:] = b"bytes"
    assert (handle.size(), len(handle), bytes(handle), bytes(memoryview(handle))) == (5, 5, b"bytes", b"bytes")
    assert ctypes.string_at(handle.ptr(), 5) == b"bytes"
    assert repr(handle) == "<BufferHandle of 5 bytes>"
    assert BufferHandle.of_size(0).size() == 0


def test_the_allocator_gives_memory_by_address_and_takes_it_back():
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(5_000)
    ctypes.memset(address, 7, 5_000)
    assert ctypes.string_at(address, 3) == b"\7\7\7"
    assert is_own_memory(address, 5_000)
    assert allocator.free(address) == 0
    assert allocator.free(address) == -600
    assert [allocator.alloc(size) for size in (0, -1, 1 << 62)] == [0, 0, 0]


def test_a_numa_node_that_is_not_there_changes_nothing():
    bind_to_numa_node(100_000)
    assert cpu_numbers("0-3,8\n") == {0, 1, 2, 3, 8}
    assert cpu_numbers("\n") == set()


def test_a_config_in_the_pools_words():
    config = ReplicateConfig()
    assert config.wish(1, "me").pin is Pin.NONE
    config.replica_num, config.preferred_segments = 2, ["first", "second"]
    config.soft_pin_action, config.soft_pin_ttl_ms = SoftPinAction.ENABLE, 500
    wish = config.wish(3, "me")
    assert (wish.replicas, wish.preferred_node, wish.pin, wish.soft_ttl_ms) == (2, "first", Pin.SOFT, 500)
    config.with_hard_pin = True
    assert (config.wish(1, "").pin, config.wish(1, "").soft_ttl_ms) == (Pin.HARD, None)
    assert ReplicateConfig(prefer_alloc_in_same_node=True).wish(1, "me").preferred_node == "me"
    assert ReplicateConfig(preferred_segment="x", prefer_alloc_in_same_node=True).wish(1, "me").preferred_node == "x"
    assert ReplicateConfig(with_soft_pin=True).wish(1, "").pin is Pin.SOFT
    assert "replica_num: 2" in str(config)


@pytest.mark.parametrize("field", ["nof_replica_num", "dfs_replica_num"])
def test_a_tier_that_the_pool_does_not_have_is_not_supported(field):
    with pytest.raises(NotSupported):
        ReplicateConfig(**{field: 1}).wish(1, "")


def test_group_ids_are_one_for_each_key():
    assert ReplicateConfig(group_ids=["a", "b"]).wish(2, "").replicas == 1
    with pytest.raises(InvalidArgument):
        ReplicateConfig(group_ids=["a"]).wish(2, "")


@pytest.mark.parametrize("key", ["", "k" * 1025, "k" * 10_000_000, "\ud800"])
def test_a_key_that_no_object_can_have_is_not_there(key):
    with pytest.raises(KeyNotFound):
        key_to_find(key)


def test_wrong_types_are_type_errors():
    for wrong in ("text", None, 5, ["x"]):
        with pytest.raises(TypeError):
            value_piece(wrong)
    for wrong in ("keys", None, {"k": 1}):
        with pytest.raises(TypeError):
            check_keys(wrong)
    with pytest.raises(TypeError):
        check_keys(["k", 5])
