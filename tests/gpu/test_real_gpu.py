"""On a real GPU: torch tensors in and out of the pool, bit for bit, over every fabric of one host (`make test-gpu`)."""

from __future__ import annotations

import asyncio
import os

import pytest

from pykvpool.client import PutItem
from pykvpool.errors import GpuFailed, InvalidArgument, NotSupported
from pykvpool.memory.cuda import GpuMemory
from pykvpool.memory.cuda_paths import has_peer_memory, page_range, ways_for
from pykvpool.memory.cuda_python import load_driver
from pykvpool.memory.device import gpu_buffer
from pykvpool.model.objects import Vouch
from pykvpool.runtime import ThreadOffload
from tests.pool.cluster import MIB, Cluster

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
try:
    DRIVER = load_driver()
except NotSupported as error:
    pytest.skip(error.message, allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)

#: Cycles that keep a stream busy for some tens of milliseconds: a put that does not wait would read old bytes.
BUSY_CYCLES = 100_000_000


@pytest.fixture(params=["inproc", "shm", "tcp"])
async def pool(request, tmp_path):
    async with Cluster(tmp_path, fabrics=(request.param,)) as cluster:
        await cluster.node("n0", 1024 * MIB)
        yield cluster


def noise(size: int, seed: int = 1):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator)


@pytest.mark.parametrize("size", [1, 4_097, 3 * MIB + 1, 200 * MIB])
async def test_bytes_go_in_and_out_bit_for_bit(pool, size):
    client = await pool.client()
    source, target = noise(size), torch.zeros(size, dtype=torch.uint8, device="cuda")
    await client.put("k", source)
    assert (await client.get_into("k", target)).vouch is Vouch.CHECKSUM
    assert torch.equal(source, target)
    assert await client.get("k") == source.cpu().numpy().tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "int64"])
async def test_every_element_type_keeps_its_bits(pool, dtype):
    client = await pool.client()
    kind = getattr(torch, dtype)
    source = noise(1 << 16).view(kind)
    target = torch.zeros_like(source)
    await client.put("k", source)
    await client.get_into("k", target)
    assert torch.equal(source.view(torch.uint8), target.view(torch.uint8))


async def test_the_blocks_of_a_paged_cache_move_in_one_batch(pool):
    client = await pool.client()
    layers = [noise(64 * 16_384, layer).view(64, 16_384) for layer in range(24)]
    client_side = [client.register(layer) for layer in layers]
    blocks = [3, 60, 0, 17]
    items = [PutItem(f"b{block}", [layer[block] for layer in layers]) for block in blocks]
    assert all(result.size_bytes == 24 * 16_384 for result in await client.put_batch(items))
    loaded = [torch.zeros_like(layer) for layer in layers]
    targets = [[layer[block] for layer in loaded] for block in blocks]
    assert all(result.vouch is Vouch.CHECKSUM for result in await client.get_into_batch(
        [item.key for item in items], targets))  # fmt: skip
    for layer, copy in zip(layers, loaded, strict=True):
        assert torch.equal(layer[blocks], copy[blocks])
        assert not copy[1].any()
    for registered in client_side:
        client.unregister(registered)


async def test_a_put_waits_for_the_kernels_before_its_event_and_for_no_others(pool):
    client = await pool.client()
    stream = torch.cuda.Stream()
    source, expected = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda"), noise(8 * MIB)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)
        source.copy_(expected)
        event = torch.cuda.Event()
        event.record(stream)
    await client.put("k", gpu_buffer(source, after=event))
    target = torch.zeros_like(source)
    await client.get_into("k", target)
    assert torch.equal(target, expected)


async def test_a_put_without_an_event_waits_for_the_stream(pool):
    client = await pool.client()
    stream = torch.cuda.Stream()
    source, expected = torch.zeros(MIB, dtype=torch.uint8, device="cuda"), noise(MIB)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)
        source.copy_(expected)
    await client.put("k", gpu_buffer(source, stream=stream.cuda_stream))
    assert await client.get("k") == expected.cpu().numpy().tobytes()


async def test_a_get_waits_for_kernels_that_still_use_the_old_bytes(pool):
    client = await pool.client()
    await client.put("k", noise(MIB, 2))
    target, old = noise(MIB, 3), noise(MIB, 3)
    kept = torch.zeros_like(target)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)
        kept.copy_(target)
        event = torch.cuda.Event()
        event.record(stream)
    await client.get_into("k", gpu_buffer(target, after=event))
    torch.cuda.synchronize()
    assert torch.equal(kept, old)
    assert torch.equal(target, noise(MIB, 2))


async def test_many_transfers_at_once_keep_their_blocks_apart(pool):
    client = await pool.client()
    sources = [noise(700_000 + 13 * i, i) for i in range(64)]
    await asyncio.gather(*(client.put(f"k{i}", source) for i, source in enumerate(sources)))
    targets = [torch.zeros_like(source) for source in sources]
    await asyncio.gather(*(client.get_into(f"k{i}", target) for i, target in enumerate(targets)))
    assert all(torch.equal(source, target) for source, target in zip(sources, targets, strict=True))


def test_a_pointer_says_where_it_leads():
    tensor = noise(1 << 20)
    found = DRIVER.locate(tensor.data_ptr() + 5)
    assert found is not None and found.ordinal == tensor.device.index and not found.managed
    assert found.address <= tensor.data_ptr() < found.address + found.size_bytes
    assert DRIVER.locate(torch.zeros(10).data_ptr()) is None


def test_memory_of_the_host_is_refused_as_gpu_memory():
    offload = ThreadOffload(1)
    host = torch.zeros(10, dtype=torch.uint8)
    with pytest.raises(InvalidArgument, match="not in GPU memory"):
        gpu_buffer(host)
    GpuMemory(offload).close()
    offload.close()


def test_an_export_gives_a_descriptor_where_the_gpu_says_it_can():
    tensor = noise(4 << 20)
    facts = DRIVER.describe(tensor.device.index)
    allocation = DRIVER.locate(tensor.data_ptr())
    print(facts, ways_for(facts, allocation, has_peer_memory()))
    pages = page_range(tensor.data_ptr(), tensor.numel())
    DRIVER.retain(facts.ordinal)
    with DRIVER.current(facts.ordinal):
        if facts.dma_buf:
            os.close(DRIVER.export_dma_buf(pages.address, pages.size_bytes))
        else:
            with pytest.raises(GpuFailed):
                DRIVER.export_dma_buf(pages.address, pages.size_bytes)
        if facts.can_flush:
            DRIVER.flush_writes()
    DRIVER.release(facts.ordinal)
