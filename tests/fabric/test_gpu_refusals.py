"""Every call of the GPU's driver refused, once or from then on: bytes are right or the outcome says why not; what a
copy engine may still touch is not given back, and everything else is."""

from __future__ import annotations

import asyncio

import pytest

from pykvpool.errors import PoolError
from pykvpool.fabric.base import Outcome
from tests.fabric.test_device_mover import RING, SLOT, Bench, pattern

CALLS = (
    "describe", "locate", "retain", "release", "current", "allocate_host", "free_host", "create_stream",
    "destroy_stream", "create_event", "destroy_event", "record", "reached", "wait", "stream_wait", "copy_to_host",
    "copy_to_device",
)  # fmt: skip
SIZES = (SLOT, 3 * SLOT + 1, RING, 2 * RING + 5)


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.gpu.may_finish.set()
    made.offload.close()


async def moved(bench: Bench) -> bool:
    """Some blocks, there and back. False: not all of them were, and their outcomes say so."""
    data = [pattern(size, seed) for seed, size in enumerate(SIZES)]
    async with asyncio.timeout(20):
        outcomes = await bench.write(*(bench.gpu.tensor(block) for block in data))
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
    assert all(outcome.error is None or isinstance(outcome.error, PoolError) for outcome in outcomes)
    offset = 0
    for block, outcome in zip(data, outcomes, strict=True):
        if outcome.error is None:
            assert bench.fabric.memory[offset : offset + len(block)] == block
        bench.fabric.memory[offset : offset + len(block)] = block
        offset += len(block)
    targets = [bench.gpu.tensor(bytes(len(block))) for block in data]
    async with asyncio.timeout(20):
        read = await bench.read(*targets)
    for target, block, outcome in zip(targets, data, read, strict=True):
        assert outcome.error is not None or bytes(target) == block
    return all(outcome.error is None for outcome in [*outcomes, *read])


@pytest.mark.parametrize("times", [1, 1_000_000])
@pytest.mark.parametrize("works_before", [0, 1, 2, 5, 12])
@pytest.mark.parametrize("call", CALLS)
async def test_a_driver_call_that_fails_costs_its_transfers_at_most(
    bench: Bench, call: str, works_before: int, times: int
) -> None:
    gpu = bench.gpu
    gpu.fail(call, works_before, times)
    await moved(bench)
    gpu.fail_no_more()
    device = bench.memory._devices.get(0)
    staging = None if device is None else device.staging
    broken = staging is not None and staging.ring.taken > 0
    assert not broken or call in ("record", "wait"), "only then is it unknown whether copies are over"
    if broken:
        assert not await moved(bench), "what copies may touch is never used again"
    else:
        assert await moved(bench), "nothing was lost for good"
    # Closing gives back what can be given back, whatever fails.
    gpu.fail(call, 0, times)
    bench.memory.close()
    gpu.fail_no_more()
    if not broken and call not in ("release", "free_host", "destroy_stream", "destroy_event", "current"):
        assert not gpu.host and set(gpu.streams) == {0} and not gpu.events
        assert not gpu.retained.get(0)
