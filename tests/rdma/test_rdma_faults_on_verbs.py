"""What goes wrong on real devices, and that it is recovered from or told of: keys, rails, queues."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from pykvpool.errors import TransferFailed
from pykvpool.fabric.base import FabricClient, Outcome
from pykvpool.fabric.rdma.settings import RdmaSettings
from pykvpool.fabric.verbs import Verbs, WorkRequest
from tests.fabric.bench import BIG_BYTES, Backend, Bench, open_bench
from tests.rdma.devices import (
    LEFT,
    RAILS,
    Rail,
    counters,
    remove_device,
    remove_interface,
    restore,
    set_port,
)
from tests.rdma.holding import Card, HoldingVerbs
from tests.rdma.processes import TIMEOUT_S, data_of

RDMA = Backend("rdma", "rdma", owner_is_asked=False, on_the_wire=True)
FIRST, SECOND = RAILS


def wrong_key(request: WorkRequest) -> WorkRequest:
    return replace(request, rkey=request.rkey ^ 0x5A5A)


@contextlib.asynccontextmanager
async def bench_on(verbs: Verbs, folder: Path, *rails: Rail) -> AsyncIterator[Bench]:
    peers = RdmaSettings(verbs=HoldingVerbs(verbs, *(rail.left for rail in rails)))
    owner = RdmaSettings(verbs=HoldingVerbs(verbs, *(rail.right for rail in rails)))
    async with open_bench(RDMA, folder, peers, owner) as opened:
        yield opened


@pytest_asyncio.fixture
async def bench(verbs: Verbs, tmp_path: Path) -> AsyncIterator[Bench]:
    """One rail."""
    async with bench_on(verbs, tmp_path, FIRST) as opened:
        yield opened


def card_of(bench: Bench, device: str = LEFT) -> Card:
    verbs = bench.rdma.verbs
    assert isinstance(verbs, HoldingVerbs)
    return verbs[device]


async def connected(bench: Bench) -> FabricClient:
    """A peer with every lane that it wants: they come one after the other, where a processor is slow."""
    client = bench.client()
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            (outcome,) = await client.read([bench.read(0, bytearray(8))], TIMEOUT_S)
            assert outcome.error is None
            (link,) = client._links.values()
            while link.busy:
                await asyncio.sleep(0)
            if link.lanes == link._wanted:
                return client


# -- keys and queues ----------------------------------------------------------------------------------------------


async def test_a_wrong_key_breaks_the_queue_pair_which_is_made_anew_and_the_transfer_repeated(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    client = await connected(bench)
    card_of(bench).spoil.append(wrong_key)
    data = data_of(1)
    with caplog.at_level(logging.WARNING):
        (outcome,) = await client.write([bench.write(0, data)], TIMEOUT_S)
    assert outcome.error is None
    assert bytes(bench.memory.view[: len(data)]) == data
    assert "remote access error" in caplog.text, "said in the log, with the device"
    assert LEFT in caplog.text


async def test_a_key_that_is_wrong_every_time_is_a_failure_that_names_peer_device_and_status(bench: Bench) -> None:
    client = await connected(bench)
    card_of(bench).spoil.extend([wrong_key] * 10_000)
    (outcome,) = await client.write([bench.write(0, data_of(1, 4096))], TIMEOUT_S)
    error = outcome.error
    assert isinstance(error, TransferFailed)
    assert error.fields["status"] == "remote access error"
    assert str(error.fields["device"]).startswith(LEFT)
    assert bench.segment.endpoints[0].endswith(str(error.fields["peer"]).removeprefix("rdma://"))
    assert not any(bench.memory.view[:4096])
    card_of(bench).spoil.clear()
    (outcome,) = await client.write([bench.write(0, b"afterwards")], TIMEOUT_S)
    assert outcome.error is None


async def test_a_send_queue_that_is_full_although_it_should_not_be_costs_a_queue_pair_and_no_byte(
    bench: Bench,
) -> None:
    client = await connected(bench)
    card_of(bench).full = 2
    data = data_of(2, BIG_BYTES)
    (outcome,) = await client.write([bench.write(0, data)], TIMEOUT_S)
    assert outcome.error is None
    assert bytes(bench.memory.view[:BIG_BYTES]) == data


async def test_ten_thousand_requests_at_once_never_overflow_a_send_queue(bench: Bench) -> None:
    """A real queue that overflowed would refuse: there is no second chance in this test."""
    client = await connected(bench)
    data = data_of(3, 10_000)
    batch = [bench.write(8 * n, data[n : n + 1]) for n in range(len(data))]
    before = card_of(bench).posted
    outcomes = await client.write(batch, TIMEOUT_S)
    assert {type(outcome.error) for outcome in outcomes} == {type(None)}
    assert bytes(bench.memory.view[: 8 * len(data) : 8]) == data
    assert card_of(bench).posted - before >= len(data)


# -- rails --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _rails_restored() -> Iterator[None]:
    yield
    restore(FIRST)


async def moved_while(bench: Bench, act: Callable[[], None]) -> Outcome:
    """Hold a big read in its middle, act, let it go on; the bytes are compared."""
    client = await connected(bench)
    data = data_of(4, BIG_BYTES)
    bench.memory.view[:BIG_BYTES] = data
    target = bytearray(BIG_BYTES)
    cards = [card_of(bench, rail.left) for rail in RAILS]
    for card in cards:
        card.hold()
    reading = asyncio.ensure_future(client.read([bench.read(0, target)], TIMEOUT_S))
    async with asyncio.timeout(TIMEOUT_S):
        while not all(card.under_way for card in cards):
            await asyncio.sleep(0)
    for card in cards:
        card.step(2)
    act()
    for card in cards:
        card.release()
    (outcome,) = await reading
    assert bytes(target) == data or outcome.error is not None
    return outcome


@pytest.mark.usefixtures("_rails_restored")
async def test_a_cable_pulled_mid_transfer_leaves_it_to_the_other_rail(verbs: Verbs, tmp_path: Path) -> None:
    async with bench_on(verbs, tmp_path, *RAILS) as bench:
        before = counters(SECOND.left)["rcvd_pkts"]
        outcome = await moved_while(bench, lambda: set_port(FIRST.left, False))
        assert outcome.error is None
        assert counters(SECOND.left)["rcvd_pkts"] - before >= BIG_BYTES // 2 // 4096, "more than its own half"


@pytest.mark.usefixtures("_rails_restored")
async def test_an_owners_cable_pulled_mid_transfer_leaves_it_to_the_other_rail(verbs: Verbs, tmp_path: Path) -> None:
    async with bench_on(verbs, tmp_path, *RAILS) as bench:
        outcome = await moved_while(bench, lambda: set_port(FIRST.right, False))
        assert outcome.error is None


@pytest.mark.usefixtures("_rails_restored")
async def test_an_interface_removed_mid_transfer_leaves_it_to_the_other_rail(verbs: Verbs, tmp_path: Path) -> None:
    removing = []
    async with bench_on(verbs, tmp_path, *RAILS) as bench:
        outcome = await moved_while(bench, lambda: removing.append(remove_interface(FIRST.left)))
        assert outcome.error is None
    (process,) = removing
    assert await asyncio.to_thread(process.wait, TIMEOUT_S) == 0, "nobody holds the devices any more"


@pytest.mark.usefixtures("_rails_restored")
async def test_a_device_that_is_to_be_removed_serves_until_it_is_closed(verbs: Verbs, tmp_path: Path) -> None:
    removing = []
    async with bench_on(verbs, tmp_path, *RAILS) as bench:
        outcome = await moved_while(bench, lambda: removing.append(remove_device(FIRST.right)))
        assert outcome.error is None
    (process,) = removing
    assert await asyncio.to_thread(process.wait, TIMEOUT_S) == 0
    assert FIRST.right not in [device.name for device in verbs.devices()]


@pytest.mark.usefixtures("_rails_restored")
async def test_with_its_only_rail_lost_a_transfer_fails_in_time_and_works_again_when_it_is_back(bench: Bench) -> None:
    client = await connected(bench)
    set_port(FIRST.left, False)
    (outcome,) = await client.write([bench.write(0, b"lost")], TIMEOUT_S)
    assert outcome.error is not None
    assert outcome.error.retryable
    restore(FIRST)
    (outcome,) = await client.write([bench.write(0, b"back")], TIMEOUT_S)
    assert outcome.error is None
    assert bytes(bench.memory.view[:4]) == b"back"
