"""Blocks of an engine whose cache is in GPU memory (a fake GPU's): saved and loaded bit for bit, and not too early."""

from __future__ import annotations

import asyncio

from pykvpool.host.jobs import AddressMover, SaveTally
from pykvpool.host.port import BlockGroup, DeviceOrder, LoadJob, Run, SaveJob
from pykvpool.model.keys import Scope
from tests.memory.fake_gpu import FakeGpu
from tests.pool.test_gpu_memory import gpu_memory
from tests.pool.test_put_get import pattern

SCOPE = Scope("tests", "model", "tp0", 0)
KEYS = (b"k0" * 16, b"k1" * 16)
BLOCK, BLOCKS = 5_000, 8


async def test_blocks_of_gpu_layers_come_back_in_other_places_once_the_engine_is_done_with_them(pool):
    gpu = FakeGpu()
    client = await pool.client(gpu=gpu_memory(pool, gpu))
    layers = [gpu.tensor(pattern(BLOCK * BLOCKS, layer)) for layer in range(3)]
    before = [bytes(layer) for layer in layers]
    runs = tuple(Run(layer.data_ptr(), BLOCK, BLOCK) for layer in layers)
    written, done = gpu.engine_event(), gpu.engine_event()
    gpu.reach(done)
    job = SaveJob(1, (BlockGroup(SCOPE, KEYS, (3, 5), runs, (None, KEYS[0]), DeviceOrder(written)),), 10_000)
    tally = SaveTally(job)
    saving = asyncio.ensure_future(AddressMover().save(client, job, tally, 10.0))
    await gpu.looked(3)
    assert not saving.done()  # the kernels that write the blocks have not run
    gpu.reach(written)
    await saving
    assert tally.done("", 0.0).stored == 2
    load = LoadJob(2, (BlockGroup(SCOPE, KEYS, (6, 1), runs, device=DeviceOrder(done)),), 10_000)
    assert await AddressMover().load(client, load, 10.0) == 2 * 3 * BLOCK
    for layer, old in zip(layers, before, strict=True):
        now = bytes(layer)
        assert now[6 * BLOCK : 7 * BLOCK] == old[3 * BLOCK : 4 * BLOCK]
        assert now[1 * BLOCK : 2 * BLOCK] == old[5 * BLOCK : 6 * BLOCK]
        assert now[: 1 * BLOCK] == old[: 1 * BLOCK]
        assert now[2 * BLOCK : 6 * BLOCK] == old[2 * BLOCK : 6 * BLOCK]
