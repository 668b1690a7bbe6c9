"""The router takes the cheapest fabric that works, falls back where that is safe, and tells what it tried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pykvpool.errors import (
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    NotSupported,
    PoolError,
    SegmentGone,
    TransferFailed,
    Unavailable,
)
from pykvpool.fabric import registry
from pykvpool.fabric.base import FabricClient, Outcome, Peer, Read, Write
from pykvpool.fabric.inproc import InprocRegistry
from pykvpool.fabric.registry import (
    DEFAULT_FABRICS,
    ClientSettings,
    ServerSettings,
    build_available,
    build_clients,
    build_servers,
    export_over,
)
from pykvpool.fabric.router import FAILURE_MEMORY_MS, Router
from pykvpool.memory.segment import MemorySegment
from pykvpool.model.ids import Generation, NodeName, PutId, SegmentId
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import real_runtime
from tests.fabric.bench import TIMEOUT_S
from tests.fabric.conformance_moves import errors_of

BROKEN = Outcome(error=Unavailable("broken"), scheme="a")
TORN = Outcome(error=Unavailable("torn"), settled=False, scheme="a")


class ManualClock:
    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms


def segment_of(*schemes: str, generation: int = 1) -> SegmentDescriptor:
    endpoints = tuple(f"{scheme}://x" for scheme in schemes)
    return SegmentDescriptor(SegmentId(generation), Generation(generation), NodeName("n"), 4096, endpoints)


@dataclass
class FakeFabric:
    """Answers as `answer` says; keeps what it was asked."""

    scheme: str
    cost: int
    answer: Callable[[Read | Write], Outcome] | None = None
    calls: list[list[Read | Write]] = field(default_factory=list)
    closed: bool = False

    def reaches(self, segment: SegmentDescriptor) -> str | None:
        return f"{self.scheme}://x" if f"{self.scheme}://x" in segment.endpoints else None

    async def read(self, batch: Sequence[Read], timeout_s: float) -> list[Outcome]:
        self.calls.append(list(batch))
        return [self.answer(operation) if self.answer else Outcome(scheme=self.scheme) for operation in batch]

    async def write(self, batch: Sequence[Write], timeout_s: float) -> list[Outcome]:
        self.calls.append(list(batch))
        return [self.answer(operation) if self.answer else Outcome(scheme=self.scheme) for operation in batch]

    async def close(self) -> None:
        self.closed = True


def read(segment: SegmentDescriptor, offset: int = 0) -> Read:
    return Read(segment, offset, 1, [memoryview(bytearray(1))])


def write(segment: SegmentDescriptor, offset: int = 0) -> Write:
    return Write(segment, offset, 1, [memoryview(b"x")], PutId(1))


def make(*fabrics: FakeFabric) -> tuple[Router, ManualClock]:
    clock = ManualClock()
    return Router(fabrics, clock), clock


async def test_the_cheapest_fabric_that_reaches_a_segment_carries_it() -> None:
    cheap, dear = FakeFabric("a", 1), FakeFabric("b", 2)
    router, _ = make(dear, cheap)
    outcomes = await router.read([read(segment_of("b", "a")), read(segment_of("b", generation=2))], TIMEOUT_S)
    assert [outcome.scheme for outcome in outcomes] == ["a", "b"]
    assert router.schemes == ("a", "b")
    assert router.reaches(segment_of("b", "a")) == "a://x"


async def test_operations_on_one_segment_travel_together_and_outcomes_keep_their_places() -> None:
    one, two = FakeFabric("a", 1), FakeFabric("b", 2)
    router, _ = make(one, two)
    near, far = segment_of("a", generation=1), segment_of("b", generation=2)
    batch = [read(far, 1), read(near, 2), read(far, 3), read(near, 4)]
    outcomes = await router.read(batch, TIMEOUT_S)
    assert [outcome.scheme for outcome in outcomes] == ["b", "a", "b", "a"]
    assert [[operation.offset for operation in call] for call in one.calls + two.calls] == [[2, 4], [1, 3]]


async def test_a_failed_read_is_tried_on_the_next_fabric_even_if_it_broke_off() -> None:
    router, _ = make(FakeFabric("a", 1, lambda _: TORN), FakeFabric("b", 2))
    (outcome,) = await router.read([read(segment_of("a", "b"))], TIMEOUT_S)
    assert outcome == Outcome(scheme="b")


async def test_p2_a_write_that_may_still_land_is_never_sent_again() -> None:
    second = FakeFabric("b", 2)
    router, _ = make(FakeFabric("a", 1, lambda _: TORN), second)
    (outcome,) = await router.write([write(segment_of("a", "b"))], TIMEOUT_S)
    assert outcome == TORN
    assert second.calls == []


async def test_p2_a_write_stays_unsettled_however_many_fabrics_failed_before() -> None:
    fabrics = FakeFabric("a", 1, lambda _: BROKEN), FakeFabric("b", 2, lambda _: TORN), FakeFabric("c", 3)
    router, _ = make(*fabrics)
    (outcome,) = await router.write([write(segment_of("a", "b", "c"))], TIMEOUT_S)
    assert isinstance(outcome.error, Unavailable)
    assert not outcome.settled
    assert fabrics[2].calls == []


async def test_a_settled_write_is_tried_on_the_next_fabric() -> None:
    router, _ = make(FakeFabric("a", 1, lambda _: BROKEN), FakeFabric("b", 2))
    (outcome,) = await router.write([write(segment_of("a", "b"))], TIMEOUT_S)
    assert outcome == Outcome(scheme="b")


async def test_only_what_failed_is_repeated() -> None:
    second = FakeFabric("b", 2)
    router, _ = make(FakeFabric("a", 1, lambda op: BROKEN if op.offset else Outcome(scheme="a")), second)
    outcomes = await router.write([write(segment_of("a", "b"), offset) for offset in (0, 1, 0, 2)], TIMEOUT_S)
    assert [outcome.scheme for outcome in outcomes] == ["a", "b", "a", "b"]
    assert [[operation.offset for operation in call] for call in second.calls] == [[1, 2]]


@pytest.mark.parametrize("error", [InvalidArgument("out of bounds"), DeadlineExceeded("late")])
async def test_what_another_fabric_cannot_mend_is_final(error: PoolError) -> None:
    second = FakeFabric("b", 2)
    router, _ = make(FakeFabric("a", 1, lambda _: Outcome(error=error, scheme="a")), second)
    (outcome,) = await router.read([read(segment_of("a", "b"))], TIMEOUT_S)
    assert outcome.error is error
    assert second.calls == []


async def test_what_one_fabric_does_not_support_another_may() -> None:
    router, _ = make(FakeFabric("a", 1, lambda _: Outcome(error=NotSupported("no"))), FakeFabric("b", 2))
    assert errors_of(await router.read([read(segment_of("a", "b"))], TIMEOUT_S)) == [None]


async def test_when_all_fail_the_error_tells_of_every_attempt() -> None:
    router, _ = make(
        FakeFabric("a", 1, lambda _: Outcome(error=Unavailable("no route"), scheme="a")),
        FakeFabric("b", 2, lambda _: Outcome(error=TransferFailed("cable cut"), scheme="b")),
    )
    (outcome,) = await router.read([read(segment_of("a", "b"))], TIMEOUT_S)
    assert isinstance(outcome.error, TransferFailed)
    assert outcome.error.message == "a: no route; b: cable cut"


async def test_a_segment_out_of_reach_is_an_error_that_names_both_sides() -> None:
    router, _ = make(FakeFabric("a", 1))
    (outcome,) = await router.read([read(segment_of("z"))], TIMEOUT_S)
    assert isinstance(outcome.error, Unavailable)
    assert "z://x" in outcome.error.message
    assert "we have a" in outcome.error.message
    assert router.reaches(segment_of("z")) is None


async def test_a_fabric_that_failed_comes_last_for_a_while_and_then_first_again() -> None:
    first, second = FakeFabric("a", 1, lambda _: BROKEN), FakeFabric("b", 2)
    router, clock = make(first, second)
    segment = segment_of("a", "b")
    for _ in range(3):
        assert errors_of(await router.read([read(segment)], TIMEOUT_S)) == [None]
    assert len(first.calls) == 1
    assert errors_of(await router.read([read(segment_of("a", "b", generation=2))], TIMEOUT_S)) == [None]
    assert len(first.calls) == 2, "another mount is another story"
    clock.ms += FAILURE_MEMORY_MS
    assert errors_of(await router.read([read(segment)], TIMEOUT_S)) == [None]
    assert len(first.calls) == 3


async def test_a_segment_is_doubted_while_every_fabric_that_reaches_it_has_failed_there() -> None:
    first, second = FakeFabric("a", 1, lambda _: BROKEN), FakeFabric("b", 2)
    router, clock = make(first, second)
    await router.read([read(segment_of("a", "b"))], TIMEOUT_S)
    assert not router.doubts(segment_of("a", "b"))
    second.answer = first.answer
    await router.read([read(segment_of("a", "b"))], TIMEOUT_S)
    assert router.doubts(segment_of("a", "b"))
    assert not router.doubts(segment_of("a", "b", generation=2))
    clock.ms += FAILURE_MEMORY_MS
    assert not router.doubts(segment_of("a", "b"))


async def test_a_segment_that_is_gone_says_nothing_about_the_fabric() -> None:
    first = FakeFabric("a", 1, lambda _: Outcome(error=SegmentGone("gone"), scheme="a"))
    router, _ = make(first, FakeFabric("b", 2))
    for _ in range(2):
        await router.read([read(segment_of("a", "b"))], TIMEOUT_S)
    assert len(first.calls) == 2


async def test_cancelling_waits_for_every_fabric_to_have_ended() -> None:
    ended = []

    class Slow(FakeFabric):
        async def read(self, batch: Sequence[Read], timeout_s: float) -> list[Outcome]:
            started.set()
            try:
                return await asyncio.Future()
            finally:
                for _ in range(5):
                    await asyncio.sleep(0)
                ended.append(self.scheme)

    started = asyncio.Event()
    router, _ = make(Slow("a", 1), Slow("b", 2))
    batch = [read(segment_of("a", generation=1)), read(segment_of("b", generation=2))]
    reading = asyncio.ensure_future(router.read(batch, TIMEOUT_S))
    await started.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert ended == ["a", "b"]


async def test_closing_closes_all_and_later_use_is_an_outcome() -> None:
    fabrics = [FakeFabric("a", 1, lambda _: Outcome(error=Closed("closed"))), FakeFabric("b", 2)]
    router, _ = make(*fabrics)
    await router.close()
    assert all(fabric.closed for fabric in fabrics)
    (outcome,) = await router.read([read(segment_of("z"))], TIMEOUT_S)
    assert isinstance(outcome.error, Closed)


async def test_the_real_fabrics_stand_in_for_each_other(tmp_path: Path) -> None:
    runtime = real_runtime()
    inproc = InprocRegistry()
    servers = build_servers(DEFAULT_FABRICS, ServerSettings(runtime, shm_path=str(tmp_path / "s"), inproc=inproc))
    for server in servers:
        await server.start()
    memory = MemorySegment(1 << 20, runtime)
    endpoints = export_over(servers, memory)
    segment = SegmentDescriptor(SegmentId(1), memory.generation, NodeName("n"), memory.size_bytes, endpoints)
    clients: list[FabricClient] = build_clients(DEFAULT_FABRICS, ClientSettings(Peer("p", 1), runtime, inproc=inproc))
    router = Router(clients, runtime.clock)
    view = await router.map_view(segment, 0, 8)
    assert view is not None
    assert view.scheme == "inproc"
    used = []
    for server in servers:
        (written,) = await router.write([write(segment)], TIMEOUT_S)
        (outcome,) = await router.read([read(segment)], TIMEOUT_S)
        assert (written.error, outcome.error) == (None, None)
        used.append((written.scheme, outcome.scheme))
        await server.withdraw(memory.generation)
    assert used == [("inproc", "inproc"), ("shm", "shm"), ("tcp", "tcp")]
    (outcome,) = await router.read([read(segment)], TIMEOUT_S)
    assert isinstance(outcome.error, SegmentGone)
    assert bytes(view.data[:1]) == b"x"
    view.data.release()
    await router.close()
    for server in servers:
        await server.close()
    memory.close()
    runtime.offload.close()


def _build(scheme: str) -> str:
    if scheme == "rdma":
        raise NotSupported("rdma: this host has no RDMA device")
    return scheme


@pytest.mark.parametrize("schemes", [("rdma", "tcp"), ("inproc", "shm", "rdma")])
def test_a_fabric_that_the_host_lacks_is_left_out_with_one_warning(
    schemes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry, "_said", set())
    for _ in range(2):
        assert build_available(schemes, _build) == [scheme for scheme in schemes if scheme != "rdma"]
    assert caplog.messages == ["going on without rdma: rdma: this host has no RDMA device"]


@pytest.mark.parametrize("schemes", [("rdma",), ("inproc", "rdma")])
def test_a_fabric_that_the_host_lacks_is_an_error_where_it_is_the_only_way_out(schemes: tuple[str, ...]) -> None:
    with pytest.raises(NotSupported, match="no RDMA device"):
        build_available(schemes, _build)
