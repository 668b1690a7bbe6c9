"""Copies on streams of our own: they come after the engine's work, and are over when the call is."""

from __future__ import annotations

import asyncio

import pytest

from pykvpool.errors import GpuFailed
from pykvpool.memory.copying import bytes_at
from pykvpool.memory.cuda_copies import Adrift, CopyQueue, Direction
from pykvpool.memory.cuda_ring import Run
from pykvpool.runtime import ThreadOffload
from tests.memory.fake_gpu import FakeGpu


class Bench:
    """A queue, a tensor and pinned memory of the same size."""

    def __init__(self, data: bytes = b"0123456789abcdef") -> None:
        self.gpu = FakeGpu()
        self.gpu.retain(0)
        self.offload = ThreadOffload(2)
        self.queue = CopyQueue(self.gpu, 0, self.offload)
        self.tensor = self.gpu.tensor(data)
        with self.gpu.current(0):
            self.address = self.gpu.allocate_host(len(data))
        self.host = bytes_at(self.address, len(data), self.gpu)
        self.gpu.calls.clear()

    def runs(self, *cuts: tuple[int, int]) -> list[Run]:
        return [Run(self.tensor.data_ptr() + start, self.address + start, size) for start, size in cuts]


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.gpu.may_finish.set()
    made.offload.close()


async def test_a_copy_is_over_when_the_call_is(bench: Bench) -> None:
    await bench.queue.copy(Direction.TO_HOST, bench.runs((0, 16)))
    assert bytes(bench.host) == b"0123456789abcdef"
    bench.host[:] = b"fedcba9876543210"
    await bench.queue.copy(Direction.TO_DEVICE, bench.runs((0, 8)))
    assert bytes(bench.tensor) == b"fedcba9889abcdef"


async def test_the_engines_events_are_waited_for_on_our_stream_before_the_copies(bench: Bench) -> None:
    await bench.queue.copy(Direction.TO_HOST, bench.runs((0, 4), (8, 4)), after=(71, 72))
    names = bench.gpu.names()
    assert names == [
        "create_event", "stream_wait", "stream_wait", "copy_to_host", "copy_to_host", "record", "wait", "destroy_event",
    ]  # fmt: skip
    waits = [call for call in bench.gpu.calls if call[0] == "stream_wait"]
    copies = [call for call in bench.gpu.calls if call[0] == "copy_to_host"]
    assert [call[2] for call in waits] == [71, 72]
    assert {call[1] for call in waits} == {call[4] for call in copies}


async def test_the_two_directions_use_two_streams_and_neither_is_the_engines(bench: Bench) -> None:
    await bench.queue.copy(Direction.TO_HOST, bench.runs((0, 4)))
    await bench.queue.copy(Direction.TO_DEVICE, bench.runs((0, 4)))
    streams = {call[4] for call in bench.gpu.calls if str(call[0]).startswith("copy_to")}
    assert len(streams) == 2 and 0 not in streams


async def test_nothing_to_copy_costs_no_call(bench: Bench) -> None:
    await bench.queue.copy(Direction.TO_HOST, [], after=(1,))
    assert not bench.gpu.calls


async def test_a_copy_that_was_refused_half_way_is_over_before_the_error_is_told(bench: Bench) -> None:
    bench.gpu.broken["copy_to_host"] = 1
    with pytest.raises(GpuFailed, match="copy_to_host") as failed:
        await bench.queue.copy(Direction.TO_HOST, bench.runs((0, 4), (4, 4)))
    assert not isinstance(failed.value, Adrift)
    assert bytes(bench.host[:4]) == b"0123"  # what had been enqueued ran, and was waited for
    assert bench.gpu.names()[-2:] == ["wait", "destroy_event"]


@pytest.mark.parametrize("call", ["record", "wait"])
async def test_copies_that_cannot_be_waited_for_are_adrift(bench: Bench, call: str) -> None:
    bench.gpu.broken[call] = 0
    with pytest.raises(Adrift, match="GPU 0 is not usable any more"):
        await bench.queue.copy(Direction.TO_HOST, bench.runs((0, 4)))


async def test_cancelled_it_waits_for_its_copies_first(bench: Bench) -> None:
    bench.gpu.may_finish.clear()
    copying = asyncio.create_task(bench.queue.copy(Direction.TO_HOST, bench.runs((0, 16))))
    await asyncio.to_thread(bench.gpu.waited.wait, 10)
    copying.cancel()
    await asyncio.sleep(0)
    copying.cancel()  # once more: patience must not run out
    await asyncio.sleep(0)
    assert not copying.done()
    bench.gpu.may_finish.set()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert bytes(bench.host) == b"0123456789abcdef"


async def test_cancelled_while_its_copies_go_adrift_it_says_so(bench: Bench) -> None:
    bench.gpu.may_finish.clear()
    copying = asyncio.create_task(bench.queue.copy(Direction.TO_HOST, bench.runs((0, 16))))
    await asyncio.to_thread(bench.gpu.waited.wait, 10)
    bench.gpu.broken["wait, half way"] = 0
    copying.cancel()
    bench.gpu.may_finish.set()
    with pytest.raises(Adrift):
        await copying


async def test_events_and_streams_are_given_back(bench: Bench) -> None:
    await bench.queue.copy(Direction.TO_HOST, bench.runs((0, 16)))
    bench.queue.close()
    assert list(bench.gpu.streams) == [0]
    assert not bench.gpu.events
