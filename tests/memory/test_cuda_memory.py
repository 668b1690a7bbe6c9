"""One client's GPU memory: whose a pointer is, what was registered, when it may be used, and giving it all back."""

from __future__ import annotations

import asyncio

import pytest

from pykvpool.errors import Closed, GpuFailed, InvalidArgument, NotSupported
from pykvpool.memory.buffers import BufferRegistry
from pykvpool.memory.copying import pinned
from pykvpool.memory.cuda import GpuMemory
from pykvpool.memory.cuda_driver import WriteOrdering
from pykvpool.memory.device import DevicePiece, gpu_buffer
from pykvpool.runtime import ThreadOffload
from tests.memory.fake_gpu import FakeGpu, facts


@pytest.fixture
def offload():
    made = ThreadOffload(2)
    yield made
    made.close()


def memory_of(gpu: FakeGpu, offload: ThreadOffload) -> GpuMemory:
    return GpuMemory(offload, load=lambda: gpu, ring_bytes=1024, slot_bytes=64)


async def test_nothing_is_loaded_before_gpu_memory_is_used(offload) -> None:
    def load():
        raise AssertionError("too early")

    GpuMemory(offload, load=load).close()


async def test_a_missing_driver_is_told_when_memory_is_registered(offload) -> None:
    def load():
        raise NotSupported("GPU memory needs cuda-python: install it")

    with pytest.raises(NotSupported, match="cuda-python"):
        GpuMemory(offload, load=load).register(DevicePiece(1, 1))


async def test_a_registered_range_is_found_from_any_piece_of_it(offload) -> None:
    gpu = FakeGpu()
    memory = memory_of(gpu, offload)
    pieces = [gpu.tensor(bytes(100)).piece for _ in range(3)]
    registered = [memory.register(piece) for piece in pieces]
    assert [memory.find(piece[10:20]) for piece in pieces] == registered
    assert memory.find(pieces[0][90:]) is registered[0]
    assert memory.find(DevicePiece(pieces[0].address + 90, 20)) is None
    assert memory.find(DevicePiece(1, 1)) is None
    assert memory.register(pieces[1]) is registered[1]


async def test_a_piece_of_registered_memory_costs_no_call_of_the_driver(offload) -> None:
    gpu = FakeGpu()
    memory = memory_of(gpu, offload)
    piece = gpu.tensor(bytes(100)).piece
    memory.register(piece)
    gpu.calls.clear()
    assert memory.locate(piece[5:6]).ordinal == 0
    assert not gpu.calls


@pytest.mark.parametrize("start", [0, 10, 60])
async def test_ranges_do_not_overlap(offload, start: int) -> None:
    gpu = FakeGpu()
    memory = memory_of(gpu, offload)
    piece = gpu.tensor(bytes(200)).piece
    memory.register(piece[20:80])
    with pytest.raises(InvalidArgument, match="overlap"):
        memory.register(piece[start : start + 50])
    memory.register(piece[80:90])


async def test_what_is_no_gpu_memory_is_refused(offload) -> None:
    gpu = FakeGpu()
    memory = memory_of(gpu, offload)
    piece = gpu.tensor(bytes(100)).piece
    managed = gpu.allocate(10, managed=True).allocation
    for refused, reason in [
        (DevicePiece(4096, 8), "not in the memory of a GPU"),
        (DevicePiece(piece.address, 101), "beyond their allocation"),
        (DevicePiece(managed.address, 10), "managed memory"),
        (piece[5:5], "empty"),
    ]:
        with pytest.raises(InvalidArgument, match=reason):
            memory.register(refused)


async def test_memory_that_was_mapped_together_from_parts_is_one(offload) -> None:
    gpu = FakeGpu(facts(0), facts(1))
    memory = memory_of(gpu, offload)
    first = gpu.allocate(4096).allocation
    gpu.allocate(4096, address=first.end, direct=False)
    gpu.allocate(4096, ordinal=1, address=first.end + 4096)
    found = memory.locate(DevicePiece(first.address + 10, 8_000))
    assert (found.address, found.end, found.direct) == (first.address, first.end + 4096, False)
    with pytest.raises(InvalidArgument, match="beyond their allocation"):
        memory.locate(DevicePiece(first.address, 8_193))  # the next one is on another GPU


async def test_whoever_registered_a_range_with_a_nic_hears_that_it_goes(offload) -> None:
    gpu = FakeGpu()
    memory = memory_of(gpu, offload)
    heard: list[object] = []
    end = memory.watch(heard.append)
    registered = memory.register(gpu.tensor(bytes(10)).piece)
    memory.unregister(registered)
    memory.unregister(registered)
    assert heard == [registered]
    end()
    memory.unregister(memory.register(gpu.tensor(bytes(10)).piece))
    assert heard == [registered]


async def test_memory_is_usable_when_the_engines_event_is_reached(offload) -> None:
    gpu = FakeGpu()
    memory = memory_of(gpu, offload)
    event = gpu.engine_event()
    piece = gpu_buffer(gpu.tensor(bytes(10)), after=event)
    await memory.device(0)
    waiting = asyncio.create_task(memory.until_usable(0, [piece, piece[1:3]]))
    await gpu.looked(3)
    assert not waiting.done()
    gpu.reach(event)
    assert await waiting == (event,)


async def test_without_an_event_one_is_recorded_on_the_engines_stream_and_given_back(offload) -> None:
    gpu = FakeGpu()
    memory = memory_of(gpu, offload)
    with_stream = gpu_buffer(gpu.tensor(bytes(10)), stream=0)
    await memory.device(0)
    before = set(gpu.events)
    assert await memory.until_usable(0, [with_stream, with_stream[2:]]) == ()
    assert [call[2] for call in gpu.calls if call[0] == "record"] == [0]
    assert set(gpu.events) == before


async def test_a_wait_for_the_engine_that_is_given_up_leaves_nothing(offload) -> None:
    gpu = FakeGpu()
    memory = memory_of(gpu, offload)
    piece = gpu_buffer(gpu.tensor(bytes(10)), after=gpu.engine_event())
    await memory.device(0)
    before = set(gpu.events)
    waiting = asyncio.create_task(memory.until_usable(0, [piece, gpu.tensor(b"x").piece]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert set(gpu.events) == before
    assert "copy_to_host" not in gpu.names()


@pytest.mark.parametrize(
    ("ordering", "flushes"), [(WriteOrdering.NONE, 1), (WriteOrdering.OWNER, 0), (WriteOrdering.ALL_DEVICES, 0)]
)
async def test_a_flush_is_made_where_the_gpu_does_not_order_writes_itself(offload, ordering, flushes: int) -> None:
    gpu = FakeGpu(facts(ordering=ordering))
    device = await memory_of(gpu, offload).device(0)
    device.flush()
    assert gpu.names().count("flush_writes") == flushes


async def test_a_gpu_that_is_only_used_directly_takes_no_pinned_memory(offload) -> None:
    gpu = FakeGpu()
    memory = memory_of(gpu, offload)
    await memory.device(0)
    memory.close()
    assert "allocate_host" not in gpu.names()
    assert gpu.retained == {0: 0}


async def test_everything_is_given_back_at_the_end(offload) -> None:
    gpu = FakeGpu(facts(0), facts(1))
    memory = memory_of(gpu, offload)
    stagings = await asyncio.gather(*(memory.staging(ordinal) for ordinal in (0, 1, 0)))
    assert stagings[0] is stagings[2]
    assert len(gpu.host) == 2
    memory.close()
    memory.close()
    assert not gpu.host and list(gpu.streams) == [0] and set(gpu.retained.values()) == {0}
    with pytest.raises(Closed):
        await memory.device(0)


async def test_a_ring_is_registered_as_the_users_own_buffers_are_and_taken_back_at_the_end(offload) -> None:
    gpu, buffers = FakeGpu(), BufferRegistry()
    memory = GpuMemory(offload, buffers, load=lambda: gpu, ring_bytes=1024, slot_bytes=64)
    staging = await memory.staging(0)
    slots = await staging.ring.acquire(2)
    [piece] = slots.lay_out([DevicePiece(1, 40)]).pieces
    with pinned(piece) as address:
        assert buffers.holder(address, 40) is not None
    staging.ring.release(slots)
    memory.close()
    assert len(buffers) == 0


async def test_pinned_memory_with_copies_adrift_is_kept(offload) -> None:
    gpu = FakeGpu()
    memory = memory_of(gpu, offload)
    staging = await memory.staging(0)
    await staging.ring.acquire(1)
    staging.broke(GpuFailed("adrift"))
    memory.close()
    assert len(gpu.host) == 1 and gpu.retained == {0: 1}


async def test_a_ring_that_cannot_be_had_is_told_and_tried_again(offload) -> None:
    gpu = FakeGpu()
    memory = memory_of(gpu, offload)
    gpu.broken["create_stream"] = 1
    with pytest.raises(GpuFailed, match="create_stream"):
        await memory.staging(0)
    assert not gpu.host and list(gpu.streams) == [0]
    gpu.broken.clear()
    assert (await memory.staging(0)).ring.slots == 16
