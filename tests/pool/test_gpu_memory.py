"""A client whose blocks are in GPU memory: it puts and gets them as any other, over every fabric of one host."""

from __future__ import annotations

import asyncio

import pytest

from pykvpool.client import PutItem, RangeItem
from pykvpool.errors import ChecksumMismatch, Closed, GpuFailed, InvalidArgument, NotSupported
from pykvpool.fabric.registry import build_client
from pykvpool.memory.copying import checksum
from pykvpool.memory.cuda import GpuMemory, RegisteredGpu
from pykvpool.memory.device import gpu_buffer
from pykvpool.model.objects import Vouch
from tests.fabric.fake_direct import DirectFabric
from tests.memory.fake_gpu import FakeGpu
from tests.pool.cluster import MIB
from tests.pool.test_put_get import pattern

RING = 256 * 1024


def gpu_memory(pool, gpu: FakeGpu) -> GpuMemory:
    return GpuMemory(pool.runtime.offload, load=lambda: gpu, ring_bytes=RING, slot_bytes=16 * 1024)


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu()


async def gpu_client(pool, gpu: FakeGpu, **options):
    return await pool.client(gpu=gpu_memory(pool, gpu), **options)


async def test_blocks_go_from_gpu_memory_to_the_pool_and_back_bit_for_bit(pool, gpu):
    client = await gpu_client(pool, gpu)
    for size in (1, 4_096, 100_003, 3 * MIB):
        source = gpu.tensor(pattern(size, size))
        result = await client.put(f"k{size}", source)
        assert (result.size_bytes, result.scheme) == (size, pool.fabrics[0])
        target = gpu.tensor(bytes(size))
        got = await client.get_into(f"k{size}", target)
        assert bytes(target) == bytes(source)
        assert (got.size_bytes, got.vouch) == (size, Vouch.CHECKSUM)  # the host saw every byte
        assert await client.get(f"k{size}") == bytes(source)


async def test_a_batch_of_layers_moves_as_pieces(pool, gpu):
    client = await gpu_client(pool, gpu)
    layers = [gpu.tensor(pattern(5_000, layer)) for layer in range(12)]
    items = [PutItem(f"b{block}", [layer.piece[block * 500 :][:500] for layer in layers]) for block in range(10)]
    assert all(not isinstance(result, Exception) for result in await client.put_batch(items))
    arrived = [gpu.tensor(bytes(6_000)) for _ in items]
    results = await client.get_into_batch([item.key for item in items], arrived)
    assert [result.vouch for result in results] == [Vouch.CHECKSUM] * 10
    for block, tensor in enumerate(arrived):
        assert bytes(tensor) == b"".join(bytes(layer)[block * 500 :][:500] for layer in layers)


async def test_what_one_client_put_from_a_gpu_another_gets_into_host_memory(pool, gpu):
    writer, reader = await gpu_client(pool, gpu), await pool.client()
    value = pattern(10_000)
    await writer.put("k", [b"header", gpu.tensor(value), b"tail"])
    assert await reader.get("k") == b"header" + value + b"tail"
    buffer = bytearray(10_010)
    assert (await reader.get_into("k", buffer)).vouch is Vouch.CHECKSUM


async def test_a_part_of_an_object_and_a_larger_buffer_leave_the_rest_of_the_memory_alone(pool, gpu):
    client = await gpu_client(pool, gpu)
    await client.put("k", pattern(1_000))
    target = gpu.tensor(b"." * 3_000)
    await client.get_into("k", target)
    assert bytes(target) == pattern(1_000) + b"." * 2_000
    part = gpu.tensor(b"." * 10)
    [result] = await client.get_ranges_into([RangeItem("k", 100, 8, part)])
    assert result.vouch is Vouch.LEASE and bytes(part) == pattern(1_000)[100:108] + b".."


async def test_registered_memory_is_found_and_given_back(pool, gpu):
    client = await gpu_client(pool, gpu)
    tensor = gpu.tensor(bytes(100))
    registered = client.register(tensor)
    assert isinstance(registered, RegisteredGpu) and registered.size_bytes == 100
    assert client.register(tensor) is registered
    await client.put("k", tensor)
    client.unregister(registered)
    client.unregister(registered)
    await client.get_into("k", tensor)


async def test_a_client_that_is_closed_gives_the_gpu_back(pool, gpu):
    client = await gpu_client(pool, gpu)
    await client.put("k", gpu.tensor(b"1234"))
    assert gpu.host
    await client.close()
    assert not gpu.host and not gpu.events and list(gpu.streams) == [0] and gpu.retained == {0: 0}


async def test_closing_ends_a_put_that_waits_for_its_engine(pool, gpu):
    client = await gpu_client(pool, gpu)
    putting = asyncio.create_task(client.put("k", gpu_buffer(gpu.tensor(b"1234"), after=gpu.engine_event())))
    await gpu.looked(1)
    await client.close()
    with pytest.raises(Closed):
        await putting
    assert gpu.retained == {0: 0}


async def test_an_address_that_is_no_gpu_memory_is_the_callers_error_and_costs_the_batch_nothing(pool, gpu):
    client = await gpu_client(pool, gpu)
    good, stray = gpu.tensor(b"1234"), gpu.tensor(b"1234")
    gpu.memories.remove(stray.memory)  # freed behind our back
    results = await client.put_batch([PutItem("a", good), PutItem("b", stray)])
    assert isinstance(results[1], InvalidArgument) and "not in the memory of a GPU" in str(results[1])
    assert results[0].size_bytes == 4
    with pytest.raises(InvalidArgument, match="not in the memory of a GPU"):
        await client.get_into("a", stray)
    assert await client.exists(["a", "b"]) == [True, False]


async def test_a_gpu_that_fails_is_named_and_the_pool_goes_on(pool, gpu):
    client = await gpu_client(pool, gpu)
    await client.put("host", b"1234")
    gpu.broken["copy_to_device"] = 0
    with pytest.raises(GpuFailed, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        await client.get_into("host", gpu.tensor(bytes(4)))
    gpu.broken["copy_to_host"] = 0
    with pytest.raises(GpuFailed):
        await client.put("gpu", gpu.tensor(b"1234"))
    assert await client.get("host") == b"1234"


async def test_without_a_driver_gpu_memory_is_refused_in_one_line_and_host_memory_works(pool, gpu):
    def load():
        raise NotSupported("GPU memory needs cuda-python: pip install '.[gpu]'")

    client = await pool.client(gpu=GpuMemory(pool.runtime.offload, load=load))
    with pytest.raises(InvalidArgument, match=r"pip install '\.\[gpu\]'"):
        await client.put("k", gpu.tensor(b"1234"))
    with pytest.raises(NotSupported):
        client.register(gpu.tensor(b"1234"))
    await client.put("k", b"1234")


async def test_bytes_that_changed_on_their_way_do_not_pass_the_gate(make_cluster, gpu):
    async with make_cluster(fabrics=("inproc",)) as cluster:
        node = await cluster.node("n0")
        client = await gpu_client(cluster, gpu)
        await client.put("k", gpu.tensor(pattern(1_000)))
        [located] = await client.stat(["k"])
        assert located.checksum == checksum([memoryview(pattern(1_000))])
        node.mount.memory.view[0] ^= 1  # the object is the first in the segment
        with pytest.raises(ChecksumMismatch):
            await client.get_into("k", gpu.tensor(bytes(1_000)))


# -- past every CPU ------------------------------------------------------------------------------------------------


def direct_factory(gpu: FakeGpu):
    return lambda scheme, settings: DirectFabric(build_client(scheme, settings), gpu)


async def test_what_no_cpu_saw_is_committed_unsummed_and_summed_by_its_owner(pool, gpu):
    client = await gpu_client(pool, gpu, make_fabric=direct_factory(gpu))
    value = pattern(50_000)
    await client.put("k", gpu.tensor(value))
    async with asyncio.timeout(20):
        while (await client.stat(["k"]))[0].checksum is None:
            await asyncio.sleep(0.005)
    assert (await client.stat(["k"]))[0].checksum == checksum([memoryview(value)])
    target = gpu.tensor(bytes(50_000))
    assert (await client.get_into("k", target)).vouch is Vouch.LEASE
    assert bytes(target) == value
    buffer = bytearray(50_000)
    assert (await client.get_into("k", buffer)).vouch is Vouch.CHECKSUM
    assert gpu.names().count("flush_writes") == 1


async def test_staged_verification_has_the_cpu_sum_every_byte(pool, gpu):
    client = await gpu_client(pool, gpu, make_fabric=direct_factory(gpu), verify="staged")
    await client.put("k", gpu.tensor(pattern(5_000)))
    assert (await client.stat(["k"]))[0].checksum == checksum([memoryview(pattern(5_000))])
    assert (await client.get_into("k", gpu.tensor(bytes(5_000)))).vouch is Vouch.CHECKSUM


async def test_an_unknown_way_to_verify_is_refused(pool):
    with pytest.raises(InvalidArgument, match="auto and staged"):
        await pool.client(verify="never")
