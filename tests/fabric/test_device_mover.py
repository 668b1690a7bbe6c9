"""GPU memory over any fabric: after the engine, whole, and never through a slot that is in use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from pykvpool.errors import Closed, DeadlineExceeded, GpuFailed, InvalidArgument, NotSupported, PoolError, Unavailable
from pykvpool.fabric.base import Outcome, Read, Write
from pykvpool.fabric.device_mover import DeviceMover
from pykvpool.fabric.router import Router
from pykvpool.memory.copying import checksum
from pykvpool.memory.cuda import GpuMemory
from pykvpool.memory.device import DevicePiece, gpu_buffer
from pykvpool.model.ids import Generation, NodeName, PutId, SegmentId
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import BootClock, ThreadOffload
from tests.fabric.fake_direct import DirectFabric
from tests.memory.fake_gpu import FakeCudaTensor, FakeGpu, facts

SEGMENT = SegmentDescriptor(SegmentId(1), Generation(1), NodeName("n"), 1 << 20, ("mem://x",))
SLOT = 64
RING = 16 * SLOT
TIMEOUT_S = 20.0


def pattern(size: int, seed: int = 0) -> bytes:
    return bytes((i * 31 + seed * 101 + i // 251) % 256 for i in range(size))


@dataclass
class MemoryFabric:
    """A fabric that moves host memory to and from one bytearray. `before` fails or delays an operation."""

    scheme: str = "mem"
    cost: int = 1
    memory: bytearray = field(default_factory=lambda: bytearray(1 << 20))
    before: Callable[[Read | Write], object] | None = None
    calls: list[list[Read | Write]] = field(default_factory=list)

    def reaches(self, segment: SegmentDescriptor) -> str | None:
        return "mem://x"

    async def _move(self, batch: Sequence[Read | Write]) -> list[Outcome]:
        self.calls.append(list(batch))
        outcomes = []
        for operation in batch:
            assert not operation.device
            answer = self.before(operation) if self.before is not None else None
            if asyncio.iscoroutine(answer):
                answer = await answer
            outcomes.append(answer if isinstance(answer, Outcome) else self._carry(operation))
        return outcomes

    def _carry(self, operation: Read | Write) -> Outcome:
        offset = operation.offset
        for piece in operation.pieces:
            if isinstance(operation, Write):
                self.memory[offset : offset + piece.nbytes] = piece
            else:
                piece[:] = self.memory[offset : offset + piece.nbytes]
            offset += piece.nbytes
        assert offset == operation.offset + operation.length
        return Outcome(checksum=checksum(operation.pieces) if operation.want_checksum else None, scheme=self.scheme)

    async def read(self, batch: Sequence[Read], timeout_s: float) -> list[Outcome]:
        return await self._move(batch)

    async def write(self, batch: Sequence[Write], timeout_s: float) -> list[Outcome]:
        return await self._move(batch)

    async def close(self) -> None: ...


class Bench:
    def __init__(self, *devices) -> None:
        self.gpu = FakeGpu(*devices)
        self.offload = ThreadOffload(2)
        self.memory = GpuMemory(self.offload, load=lambda: self.gpu, ring_bytes=RING, slot_bytes=SLOT)
        self.mover = DeviceMover(self.memory, self.offload)
        self.fabric = MemoryFabric()

    async def write(self, *tensors: object, timeout_s: float = TIMEOUT_S) -> list[Outcome]:
        batch, offset = [], 0
        for tensor in tensors:
            pieces = tensor if isinstance(tensor, list) else [tensor]
            pieces = [piece.piece if isinstance(piece, FakeCudaTensor) else piece for piece in pieces]
            length = sum(piece.nbytes for piece in pieces)
            batch.append(Write(SEGMENT, offset, length, (), PutId(1), device=pieces))
            offset += length
        return await self.mover.move(self.fabric, batch, timeout_s)

    async def read(self, *tensors: FakeCudaTensor, timeout_s: float = TIMEOUT_S) -> list[Outcome]:
        batch, offset = [], 0
        for tensor in tensors:
            batch.append(Read(SEGMENT, offset, tensor.numel(), (), device=[tensor.piece]))
            offset += tensor.numel()
        return await self.mover.move(self.fabric, batch, timeout_s)

    def idle(self) -> bool:
        """No slot is held and nothing is left on our streams."""
        staging = self.memory._devices[0].staging
        return staging.ring.taken == 0 and not any(stream.waiting for stream in self.gpu.streams.values())


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.gpu.may_finish.set()
    made.offload.close()


@pytest.mark.parametrize("size", [1, SLOT - 1, SLOT, SLOT + 1, RING // 2, RING // 2 + 1, RING, 5 * RING + 3])
async def test_bytes_go_to_the_pool_and_come_back_bit_for_bit(bench: Bench, size: int) -> None:
    data = pattern(size)
    [outcome] = await bench.write(bench.gpu.tensor(data))
    assert outcome == Outcome(checksum=checksum([memoryview(data)]), scheme="mem")
    assert bench.fabric.memory[:size] == data
    target = bench.gpu.tensor(bytes(size))
    [outcome] = await bench.read(target)
    assert outcome == Outcome(checksum=checksum([memoryview(data)]), scheme="mem")
    assert bytes(target) == data
    assert bench.idle()


async def test_a_batch_larger_than_the_ring_keeps_every_block_apart(bench: Bench) -> None:
    blocks = [pattern(10 + 37 * i % 500, seed=i) for i in range(40)]
    outcomes = await bench.write(*(bench.gpu.tensor(block) for block in blocks))
    assert [outcome.checksum for outcome in outcomes] == [checksum([memoryview(block)]) for block in blocks]
    assert bench.fabric.memory.startswith(b"".join(blocks))
    targets = [bench.gpu.tensor(bytes(len(block))) for block in blocks]
    assert all(outcome.error is None for outcome in await bench.read(*targets))
    assert [bytes(target) for target in targets] == blocks
    assert bench.idle()
    assert len(bench.fabric.calls) > 4  # waves, not one call a block and not one for all


async def test_host_and_gpu_pieces_of_one_object_keep_their_order(bench: Bench) -> None:
    first, second = bench.gpu.tensor(pattern(100, 1)), bench.gpu.tensor(pattern(RING, 2))
    pieces = [memoryview(b"header"), first, memoryview(b"between"), second, memoryview(b"end")]
    [outcome] = await bench.write(pieces)
    whole = b"header" + bytes(first) + b"between" + bytes(second) + b"end"
    assert outcome.error is None and outcome.checksum == checksum([memoryview(whole)])
    assert bench.fabric.memory.startswith(whole)


async def test_p2_no_slot_is_used_again_while_a_transfer_or_a_copy_is_in_it(bench: Bench) -> None:
    """Every transfer is held until no other can begin: what is in the slots then is what was meant."""
    held: list[tuple[Write, bytes]] = []
    gate = asyncio.Event()

    def before(operation):
        held.append((operation, b"".join(map(bytes, operation.pieces))))
        return gate.wait()

    bench.fabric.before = before
    blocks = [pattern(SLOT * 3, seed=i) for i in range(20)]
    writing = asyncio.create_task(bench.write(*(bench.gpu.tensor(block) for block in blocks)))
    async with asyncio.timeout(TIMEOUT_S):
        while len(held) < 2:
            await asyncio.sleep(0.001)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(held) == 2  # one operation of each of the two waves: the ring has no room for a third
    assert bench.memory._devices[0].staging.ring.taken > 0
    assert all(b"".join(map(bytes, operation.pieces)) == seen for operation, seen in held)
    gate.set()
    await writing
    assert bench.fabric.memory.startswith(b"".join(blocks))


async def test_nothing_is_copied_before_the_engine_is_done(bench: Bench) -> None:
    event = bench.gpu.engine_event()
    writing = asyncio.create_task(bench.write(gpu_buffer(bench.gpu.tensor(b"x" * 10), after=event)))
    await bench.gpu.looked(5)
    assert "copy_to_host" not in bench.gpu.names() and not bench.fabric.calls
    bench.gpu.reach(event)
    assert (await writing)[0].error is None
    assert ("stream_wait", event) in [(call[0], call[2]) for call in bench.gpu.calls if call[0] == "stream_wait"]


async def test_an_engine_that_is_never_done_costs_its_deadline_and_nothing_else(bench: Bench) -> None:
    stuck = gpu_buffer(bench.gpu.tensor(b"x" * 10), after=bench.gpu.engine_event())
    [outcome] = await bench.write(stuck, timeout_s=0.01)
    assert isinstance(outcome.error, DeadlineExceeded) and outcome.settled
    assert (await bench.write(bench.gpu.tensor(b"y")))[0].error is None
    assert bench.idle()


async def test_closing_ends_the_wait_for_an_engine(bench: Bench) -> None:
    stuck = gpu_buffer(bench.gpu.tensor(b"x" * 10), after=bench.gpu.engine_event())
    writing = asyncio.create_task(bench.write(stuck))
    await bench.gpu.looked(1)
    await bench.mover.close()
    assert isinstance((await writing)[0].error, Closed)
    assert isinstance((await bench.write(bench.gpu.tensor(b"y")))[0].error, Closed)


async def test_a_failed_read_leaves_the_gpu_alone_and_the_others_arrive(bench: Bench) -> None:
    broken = Outcome(error=Unavailable("broken"), scheme="mem")
    await bench.write(*(bench.gpu.tensor(b"what slots held before") for _ in range(RING // SLOT)))
    bench.fabric.memory[:30] = pattern(30)
    bench.fabric.before = lambda operation: broken if operation.offset == 10 else None
    targets = [bench.gpu.tensor(bytes(10)) for _ in range(3)]
    outcomes = await bench.read(*targets)
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert [bytes(target) for target in targets] == [pattern(30)[:10], bytes(10), pattern(30)[20:]]
    assert bench.idle()


async def test_a_write_that_may_still_land_is_told_as_such(bench: Bench) -> None:
    torn = Outcome(error=Unavailable("torn"), settled=False, scheme="mem")
    bench.fabric.before = lambda operation: torn if operation.offset else None
    large = bench.gpu.tensor(pattern(2 * RING))
    [outcome] = await bench.write(large)
    assert outcome == torn  # of its second part; the rest was not begun
    assert len(bench.fabric.calls) == 2
    assert bench.idle()


async def test_a_copy_that_fails_is_the_gpus_fault_and_nothing_can_land(bench: Bench) -> None:
    bench.gpu.broken["copy_to_host"] = 0
    outcomes = await bench.write(bench.gpu.tensor(b"x"), bench.gpu.tensor(b"y"))
    assert all(isinstance(outcome.error, GpuFailed) and outcome.settled for outcome in outcomes)
    assert not bench.fabric.calls
    assert bench.idle()


async def test_p2_slots_whose_copies_are_adrift_are_never_used_again(bench: Bench) -> None:
    bench.gpu.broken["wait"] = 0
    [outcome] = await bench.write(bench.gpu.tensor(b"x" * 100))
    assert isinstance(outcome.error, GpuFailed)
    ring = bench.memory._devices[0].staging.ring
    assert ring.taken == 2
    bench.gpu.broken.clear()
    [outcome] = await bench.write(bench.gpu.tensor(b"y"))
    assert isinstance(outcome.error, GpuFailed) and "not usable any more" in str(outcome.error)
    assert ring.taken == 2


async def test_p2_cancelled_it_is_over_only_when_its_copies_are(bench: Bench) -> None:
    bench.gpu.may_finish.clear()
    target = bench.gpu.tensor(bytes(100))
    bench.fabric.memory[:100] = pattern(100)
    reading = asyncio.create_task(bench.read(target))
    await asyncio.to_thread(bench.gpu.waited.wait, 10)
    reading.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not reading.done()
    bench.gpu.may_finish.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert bench.idle()


async def test_an_end_that_nobody_foresaw_breaks_the_ring_rather_than_reuse_a_slot(bench: Bench) -> None:
    def bug(operation):
        raise ZeroDivisionError("a bug in a fabric")

    bench.fabric.before = bug
    with pytest.raises(ZeroDivisionError):
        await bench.write(bench.gpu.tensor(b"x"))
    bench.fabric.before = None
    [outcome] = await bench.write(bench.gpu.tensor(b"x"))
    assert "not foreseen" in str(outcome.error)


async def test_each_operation_answers_for_its_own_memory(bench: Bench) -> None:
    good = bench.gpu.tensor(b"good")
    elsewhere = DevicePiece(4096, 4)
    outcomes = await bench.write(good, elsewhere, good)
    assert [type(outcome.error) for outcome in outcomes] == [type(None), InvalidArgument, type(None)]


async def test_an_object_is_on_one_gpu() -> None:
    bench = Bench(facts(0), facts(1))
    mixed = [bench.gpu.tensor(b"here", 0), bench.gpu.tensor(b"there", 1)]
    outcomes = await bench.write(mixed, bench.gpu.tensor(b"one", 0), bench.gpu.tensor(b"two", 1))
    assert "are on 2 GPUs" in str(outcomes[0].error)
    assert [outcome.error for outcome in outcomes[1:]] == [None, None]
    bench.offload.close()


async def test_pieces_that_do_not_fit_their_operation_are_refused(bench: Bench) -> None:
    piece = bench.gpu.tensor(b"1234").piece
    short = Write(SEGMENT, 0, 5, (), PutId(1), device=[piece])
    readonly = Read(SEGMENT, 0, 5, (), device=[piece, memoryview(b"x")])
    host_only = Write(SEGMENT, 0, 1, (), PutId(1), device=[memoryview(b"x")])
    for operation in (short, readonly, host_only):
        [outcome] = await bench.mover.move(bench.fabric, [operation], TIMEOUT_S)
        assert isinstance(outcome.error, InvalidArgument)


async def test_a_host_without_a_driver_says_so_once_and_tries_no_other_fabric() -> None:
    def load():
        raise NotSupported("GPU memory needs cuda-python: pip install it")

    offload = ThreadOffload(1)
    mover = DeviceMover(GpuMemory(offload, load=load), offload)
    first, second = MemoryFabric("a", 1), MemoryFabric("b", 2)
    router = Router([first, second], BootClock(), mover)
    [outcome] = await router.write([Write(SEGMENT, 0, 4, (), PutId(1), device=[DevicePiece(1, 4)])], TIMEOUT_S)
    assert str(outcome.error) == "GPU memory needs cuda-python: pip install it"
    assert not first.calls and not second.calls
    offload.close()


async def test_a_gpu_error_does_not_make_the_router_doubt_the_fabric(bench: Bench) -> None:
    router = Router([bench.fabric], BootClock(), bench.mover)
    bench.gpu.broken["copy_to_host"] = 0
    [outcome] = await router.write(
        [Write(SEGMENT, 0, 4, (), PutId(1), device=[bench.gpu.tensor(b"1234").piece])], TIMEOUT_S
    )
    assert isinstance(outcome.error, GpuFailed)
    assert not router.doubts(SEGMENT)


async def test_host_and_gpu_operations_of_one_batch_go_their_own_ways(bench: Bench) -> None:
    router = Router([bench.fabric], BootClock(), bench.mover)
    batch = [
        Write(SEGMENT, 0, 4, [memoryview(b"host")], PutId(1)),
        Write(SEGMENT, 4, 3, (), PutId(1), device=[bench.gpu.tensor(b"gpu").piece]),
    ]
    assert [outcome.error for outcome in await router.write(batch, TIMEOUT_S)] == [None, None]
    assert bench.fabric.memory.startswith(b"hostgpu")


# -- a fabric that reaches GPU memory by itself --------------------------------------------------------------------


@pytest.fixture
def direct(bench: Bench):
    bench.fabric = DirectFabric(bench.fabric, bench.gpu)
    return bench


async def test_where_the_nic_reaches_the_memory_nothing_is_copied(direct: Bench) -> None:
    data = pattern(5 * RING)
    [outcome] = await direct.write(direct.gpu.tensor(data))
    assert outcome == Outcome(checksum=None, scheme="mem")  # no CPU saw the bytes
    target = direct.gpu.tensor(bytes(len(data)))
    [outcome] = await direct.read(target)
    assert outcome == Outcome(checksum=None, scheme="mem")
    assert bytes(target) == data
    assert not [name for name in direct.gpu.names() if name.startswith("copy_to") or name == "allocate_host"]


async def test_reads_into_gpu_memory_end_with_the_drivers_flush(direct: Bench) -> None:
    await direct.write(direct.gpu.tensor(b"12"))
    assert "flush_writes" not in direct.gpu.names()  # nothing was written into the GPU
    await direct.read(direct.gpu.tensor(bytes(1)), direct.gpu.tensor(bytes(1)))
    assert [name for name in direct.gpu.names() if name in ("nic read", "flush_writes")] == [
        "nic read", "nic read", "flush_writes",
    ]  # fmt: skip


async def test_bytes_that_could_not_be_flushed_are_not_given_out(direct: Bench) -> None:
    direct.gpu.broken["flush_writes"] = 0
    [outcome] = await direct.read(direct.gpu.tensor(bytes(4)))
    assert isinstance(outcome.error, GpuFailed)


async def test_the_nic_too_waits_for_the_engine(direct: Bench) -> None:
    stuck = gpu_buffer(direct.gpu.tensor(b"x" * 10), after=direct.gpu.engine_event())
    [outcome] = await direct.write(stuck, timeout_s=0.01)
    assert isinstance(outcome.error, DeadlineExceeded)


async def test_on_demand_every_byte_passes_the_host(direct: Bench) -> None:
    direct.mover = DeviceMover(direct.memory, direct.offload, staged_only=True)
    [outcome] = await direct.write(direct.gpu.tensor(b"1234"))
    assert outcome.checksum == checksum([memoryview(b"1234")])


async def test_the_log_says_once_which_way_is_in_use_and_why(direct: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pykvpool.fabric.gpu")
    for obstacle in (None, None, "no dma-buf here", "no dma-buf here"):
        direct.fabric.obstacle = obstacle
        await direct.write(direct.gpu.tensor(b"1"))
    direct.fabric = MemoryFabric("tcp")
    await direct.write(direct.gpu.tensor(b"1"))
    assert [record.getMessage() for record in caplog.records] == [
        f"blocks of GPU 0 (Fake GPU) go over {way}"
        for way in (
            "mem directly, fake0 by magic",
            "mem staged through pinned host memory: no dma-buf here",
            "tcp staged through pinned host memory: the tcp fabric moves host memory only",
        )
    ]


def errors(outcomes: Sequence[Outcome]) -> list[PoolError | None]:
    return [outcome.error for outcome in outcomes]


async def test_a_batch_is_split_between_the_two_ways(direct: Bench) -> None:
    class Half(DirectFabric):
        def device_obstacle(self, operation):
            return "odd offsets are not for me" if operation.offset % 2 else None

    direct.fabric = Half(direct.fabric._inner, direct.gpu)
    blocks = [pattern(5, seed=i) for i in range(6)]
    outcomes = await direct.write(*(direct.gpu.tensor(block) for block in blocks))
    assert errors(outcomes) == [None] * 6
    assert [outcome.checksum is None for outcome in outcomes] == [True, False] * 3
    assert direct.fabric._inner.memory.startswith(b"".join(blocks))
