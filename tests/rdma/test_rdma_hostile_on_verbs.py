"""Ill-treatment on real devices: many peers at once, forks, peers that lie about their queue pairs, ends in the middle
of everything. Bytes stay right, and afterwards the kernel holds nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pykvpool.errors import PoolError, TransferFailed, Unavailable
from pykvpool.fabric.base import Outcome, Peer
from pykvpool.fabric.handshake import Identity
from pykvpool.fabric.rdma import wire
from pykvpool.fabric.rdma.local_memory import BORROW_BYTES
from pykvpool.fabric.rdma.session import Session
from pykvpool.fabric.rdma.settings import RdmaSettings
from pykvpool.fabric.rdma.slices import SLICE_BYTES
from pykvpool.fabric.rdma.staging import LARGE_SLOT_BYTES, SMALL_SLOT_BYTES
from pykvpool.fabric.registry import ClientSettings, build_client
from pykvpool.fabric.verbs import Verbs
from pykvpool.memory.buffers import BufferRegistry
from tests.fabric.bench import BIG_BYTES, Backend, Bench, open_bench
from tests.rdma.devices import LEFT, RAILS
from tests.rdma.holding import Card, HoldingVerbs
from tests.rdma.processes import TIMEOUT_S, data_of

RDMA = Backend("rdma", "rdma", owner_is_asked=False, on_the_wire=True)
RAIL = RAILS[0]


def held_by_the_kernel() -> Counter[str]:
    """RDMA objects of all processes, by kind."""
    listed = subprocess.run(
        ["rdma", "-j", "resource", "show"], check=True, capture_output=True, stdin=subprocess.DEVNULL
    )
    found: Counter[str] = Counter()
    for device in json.loads(listed.stdout):
        found.update({kind: count for kind, count in device.items() if kind in ("pd", "cq", "qp", "mr")})
    return found


@pytest_asyncio.fixture
async def bench(verbs: Verbs, tmp_path: Path) -> AsyncIterator[Bench]:
    """One rail. Whatever a test does, nothing of it is left."""
    before = held_by_the_kernel()
    peers = RdmaSettings(verbs=HoldingVerbs(verbs, RAIL.left))
    owner = RdmaSettings(verbs=HoldingVerbs(verbs, RAIL.right))
    async with open_bench(RDMA, tmp_path, peers, owner) as opened:
        yield opened
    assert held_by_the_kernel() == before


def card_of(bench: Bench) -> Card:
    assert isinstance(bench.rdma.verbs, HoldingVerbs)
    return bench.rdma.verbs[LEFT]


async def test_many_peers_at_once_each_get_their_own_bytes(bench: Bench) -> None:
    clients = [bench.client() for _ in range(24)]
    blocks = [data_of(number, 100_000) for number in range(len(clients))]

    async def use(number: int) -> bytes:
        into = bytearray(100_000)
        for _ in range(2):
            (outcome,) = await clients[number].write([bench.write(number * 200_000, blocks[number])], 5 * TIMEOUT_S)
            assert outcome.error is None, outcome.error
            (outcome,) = await clients[number].read([bench.read(number * 200_000, into)], 5 * TIMEOUT_S)
            assert outcome.error is None, outcome.error
        return bytes(into)

    assert await asyncio.gather(*(use(number) for number in range(len(clients)))) == blocks


@pytest.mark.parametrize("registered", [True, False])
async def test_p1_memory_that_cards_know_stays_theirs_when_the_process_forks(bench: Bench, registered: bool) -> None:
    """A page that is copied on the parent's next write would be another one than the card has."""
    buffers = BufferRegistry()
    settings = ClientSettings(Peer("forks", 7), bench.runtime, rdma=bench.rdma, buffers=buffers)
    client = build_client("rdma", settings)
    bench.stack.push_async_callback(client.close)
    data = bytearray(data_of(1))
    if registered:
        buffers.register(data)
    (outcome,) = await client.write([bench.write(0, data)], TIMEOUT_S)
    assert outcome.error is None
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        for seed in (2, 3):
            data[:] = data_of(seed)
            (outcome,) = await client.write([bench.write(0, data)], TIMEOUT_S)
            assert outcome.error is None
            assert bytes(bench.memory.view[: len(data)]) == data_of(seed)
            data[:] = bytes(len(data))
            (outcome,) = await client.read([bench.read(0, data)], TIMEOUT_S)
            assert outcome.error is None
            assert data == data_of(seed)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


async def test_sizes_around_every_limit_come_back_as_they_were(bench: Bench) -> None:
    client = bench.client()
    limits = (SMALL_SLOT_BYTES, LARGE_SLOT_BYTES, BORROW_BYTES, SLICE_BYTES)
    sizes = sorted({0, 1, 7, 8, 9, *(limit + by for limit in limits for by in (-1, 0, 1))})
    offset = 3
    for size in sizes:
        data, into = data_of(size, size), bytearray(size)
        (outcome,) = await client.write([bench.write(offset, data)], TIMEOUT_S)
        assert outcome.error is None, size
        (outcome,) = await client.read([bench.read(offset, into)], TIMEOUT_S)
        assert outcome.error is None, size
        assert into == data, size
        offset += size
    assert not any(bench.memory.view[offset : offset + 64]), "nothing was written beyond"


@pytest.mark.parametrize("how", ["cancel", "close", "deadline"])
async def test_p2_an_end_in_the_middle_leaves_no_queue_pair_and_no_byte_to_come(bench: Bench, how: str) -> None:
    client = bench.client()
    (outcome,) = await client.read([bench.read(0, bytearray(8))], TIMEOUT_S)
    assert outcome.error is None
    bench.memory.view[:BIG_BYTES] = b"\xaa" * BIG_BYTES
    into = bytearray(BIG_BYTES)
    card = card_of(bench)
    card.hold()
    patience_s = 1.0 if how == "deadline" else TIMEOUT_S
    reading = asyncio.ensure_future(client.read([bench.read(0, into)], patience_s))
    async with asyncio.timeout(TIMEOUT_S):
        while not card.under_way:
            await asyncio.sleep(0)
    card.step(2)
    if how == "cancel":
        reading.cancel()
    elif how == "close":
        await client.close()
    outcomes: list[Outcome] = []
    with contextlib.suppress(asyncio.CancelledError):
        outcomes = await reading
    assert all(isinstance(outcome.error, PoolError) for outcome in outcomes)
    seen = bytes(into)
    into[:] = bytes(BIG_BYTES)
    card.release()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not any(into), "nothing arrives any more"
    assert set(seen) <= {0, 0xAA}


@pytest.mark.parametrize(
    "lie",
    ["a gid of nobody", "my own gid as yours", "a queue pair of somebody else", "the largest numbers"],
)
async def test_p12_a_peer_that_lies_about_its_queue_pair_harms_nobody(bench: Bench, lie: str) -> None:
    honest = bench.client()
    (outcome,) = await honest.write([bench.write(0, b"honest")], TIMEOUT_S)
    assert outcome.error is None
    (link,) = honest._links.values()
    theirs = next(iter(link._lanes))._pair.number
    liar = await Session.connect(bench.server.endpoint, Identity(Peer("liar", 5), "test", None), bench.runtime)
    (rail,) = (await liar.open(bench.memory.generation)).rails
    gid = rail.gids[0]
    lies = {
        "a gid of nobody": {"gid": b"\xfe\x80" + bytes(13) + b"\x77"},
        "my own gid as yours": {"gid": gid.address},
        "a queue pair of somebody else": {"number": theirs},
        "the largest numbers": {"number": 0xFFFFFF, "psn": 0xFFFFFF, "lid": 0xFFFF, "read_depth": 1 << 40},
    }
    left = bytes(10) + b"\xff\xff" + bytes((10, 98, 0, 1))
    values: dict[str, object] = {"number": 17, "psn": 5, "gid": left, "lid": 0, "mtu_bytes": 4096, "read_depth": 16}
    values |= lies[lie]
    connected = 0
    for number in range(4):
        ask = wire.Connect(liar.next_number(), bench.memory.generation, rail.name, gid.index, **values)
        # The kernel may find by itself that nobody is there.
        with contextlib.suppress(TransferFailed):
            await liar.connect_pair(ask)
            connected += 1
        data = data_of(number, 50_000)
        (outcome,) = await honest.write([bench.write(0, data)], TIMEOUT_S)
        assert outcome.error is None
        assert bytes(bench.memory.view[:50_000]) == data
    assert connected or lie == "a gid of nobody"
    await liar.close(Unavailable("enough"))
    (outcome,) = await honest.write([bench.write(0, b"still here")], TIMEOUT_S)
    assert outcome.error is None
