"""P1 at a view: it shows bytes for as long as its lease is trusted, and whoever leaves it late is told."""

from __future__ import annotations

import asyncio
from pickle import PickleBuffer

import pytest

from pykvpool.client.held import HeldLease
from pykvpool.client.views import View
from pykvpool.errors import InvalidArgument, StaleView
from pykvpool.model.commands import Release, Renew
from pykvpool.model.objects import Vouch
from pykvpool.model.replies import Done
from tests.client.fakes import Bench

LEASE_MS = 10_000


@pytest.fixture
async def bench():
    bench = Bench({Release: [Done()], Renew: [Done()]})
    yield bench
    await bench.end()


def view_of(bench: Bench, memory: bytearray, lease_ms: int = LEASE_MS) -> View:
    """A view of somebody's writable memory, its lease just granted."""
    held = HeldLease(bench.link, 8, lease_ms, bench.clock.ms)
    return View(memoryview(memory), held, Vouch.LEASE, "fake", "n0")


async def released(bench: Bench) -> list[Release]:
    await bench.link.close()
    return bench.session.of(Release)


async def test_p1_a_view_shows_the_bytes_where_they_lie_and_gives_its_lease_back(bench):
    memory = bytearray(b"block")
    async with view_of(bench, memory) as view:
        assert view.zero_copy
        memory[0:1] = b"c"
        assert view.data == b"clock"
    assert await released(bench) == [Release((8,))]


async def test_p1_leaving_a_view_whose_lease_lapsed_says_that_its_bytes_may_be_others(bench):
    with pytest.raises(StaleView):
        async with view_of(bench, bytearray(b"block")) as view:
            assert view.data == b"block"
            bench.clock.ms += LEASE_MS
    assert await released(bench) == [Release((8,))]


async def test_p1_a_view_shows_nothing_once_its_lease_has_lapsed(bench):
    with pytest.raises(StaleView):
        async with view_of(bench, bytearray(b"block")) as view:
            bench.clock.ms += LEASE_MS
            with pytest.raises(StaleView):
                _ = view.data


async def test_p1_an_error_inside_a_stale_view_is_the_one_that_is_raised(bench):
    with pytest.raises(KeyError):
        async with view_of(bench, bytearray(b"block")):
            bench.clock.ms += LEASE_MS
            raise KeyError("the caller's own")
    assert await released(bench) == [Release((8,))]


async def test_p1_nothing_can_be_written_through_a_view(bench):
    memory = bytearray(b"block")
    async with view_of(bench, memory) as view:
        assert view.data.readonly
        with pytest.raises(TypeError):
            view.data[0] = 1
    assert memory == b"block"


async def test_an_open_view_keeps_its_lease_alive(bench):
    renewed = asyncio.Event()
    bench.session.script[Renew] = [lambda command: renewed.set() or Done()]
    async with asyncio.timeout(10), view_of(bench, bytearray(b"block"), lease_ms=20):
        await renewed.wait()
    assert bench.session.of(Renew)[0].leases == (8,)


async def test_a_view_that_is_left_while_something_still_refers_to_it_says_so(bench):
    kept = []
    with pytest.raises(InvalidArgument, match="copy what you keep"):
        async with view_of(bench, bytearray(b"block")) as view:
            kept.append(PickleBuffer(view.data))
    assert await released(bench) == [Release((8,))]


async def test_a_private_copy_needs_no_lease(bench):
    async with View(memoryview(b"copy"), None, Vouch.CHECKSUM, "fake", "n0") as view:
        bench.clock.ms += LEASE_MS
        assert view.data == b"copy"
        assert not view.zero_copy
    assert await released(bench) == []
