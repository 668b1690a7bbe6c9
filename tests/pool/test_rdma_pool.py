"""A pool whose blocks move by RDMA, over fake cards: as any other, and never without a way on."""

from __future__ import annotations

import pytest

from pykvpool.client import PutItem
from pykvpool.errors import NotSupported
from pykvpool.fabric.rdma.settings import RdmaSettings
from pykvpool.fabric.verbs import Opcode, Status
from tests.fabric.fake_verbs import FakeVerbs
from tests.pool.cluster import MIB, until

BLOCK = 300_000
WRITE = Opcode.WRITE


@pytest.fixture
def cards() -> FakeVerbs:
    return FakeVerbs("card0", "card1")


@pytest.fixture
async def pool(make_cluster, cards):
    """Two nodes that are reached by RDMA, else by TCP."""
    async with make_cluster(fabrics=("rdma", "tcp"), rdma=RdmaSettings(verbs=cards)) as cluster:
        for name in ("n0", "n1"):
            await cluster.node(name)
        yield cluster


async def test_blocks_are_put_and_got_by_rdma(pool):
    client = await pool.client()
    blocks = {f"k{i}": bytes([i]) * BLOCK for i in range(12)}
    put = await client.put_batch([PutItem(key, data) for key, data in blocks.items()], replicas=2)
    assert {result.replicas for result in put} == {2}
    assert await client.get_batch(list(blocks)) == list(blocks.values())
    buffer = bytearray(BLOCK)
    client.register(buffer)
    for key, data in blocks.items():
        result = await client.get_into(key, buffer)
        assert (result.scheme, bytes(buffer)) == ("rdma", data)
    counts = client.statistics()
    assert set(counts.bytes_written) == set(counts.bytes_read) == {"rdma"}


async def test_a_write_that_fails_is_repeated_and_the_put_is_whole(pool, cards):
    client = await pool.client()
    await client.put("first", b"x" * BLOCK)
    cards["card0"].fail_next(Status.RETRY_EXCEEDED, WRITE)
    cards["card1"].fail_next(Status.RETRY_EXCEEDED, WRITE)
    data = bytes(range(256)) * 20_000
    result = await client.put("second", data)
    assert not result.degraded
    assert await client.get("second") == data


async def test_where_no_port_is_up_blocks_go_by_tcp(pool, cards):
    client = await pool.client()
    await client.put("by rdma", b"x" * BLOCK)
    for name in ("card0", "card1"):
        cards[name].set_port(up=False)
    buffer = bytearray(BLOCK)
    result = await client.get_into("by rdma", buffer)
    assert (result.scheme, bytes(buffer)) == ("tcp", b"x" * BLOCK)
    await client.put("by tcp", b"y" * BLOCK)
    assert await client.get("by tcp") == b"y" * BLOCK


async def test_a_session_that_is_renewed_moves_blocks_over_queue_pairs_of_its_own(pool, cards):
    client = await pool.client()
    await client.put("before", b"x" * BLOCK)
    pairs = set(cards["card0"].pairs)
    assert pairs
    await client._fabrics.renew()  # as a call does that finds the session expired
    await until(lambda: not pairs & set(cards["card0"].pairs))
    assert await client.get("before") == b"x" * BLOCK


async def test_a_reader_reads(pool):
    client = await pool.client()
    await client.put("k", b"x" * BLOCK)
    reader = await pool.client(role="reader")
    assert await reader.get("k") == b"x" * BLOCK


async def test_a_node_that_is_asked_for_rdma_where_there_is_none_says_what_is_missing(make_cluster):
    nothing = FakeVerbs("only")
    nothing.devices = list
    async with make_cluster(fabrics=("rdma",), rdma=RdmaSettings(verbs=nothing)) as cluster:
        with pytest.raises(NotSupported, match="no RDMA device"):
            await cluster.node("n0", 1 * MIB)
        with pytest.raises(NotSupported, match="no RDMA device"):
            await cluster.client()
