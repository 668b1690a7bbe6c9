"""Several copies, on distinct nodes; what happens when a node goes."""

from __future__ import annotations

import asyncio

import pytest

from pykvpool.client import PutItem
from pykvpool.core.config import CoreConfig
from pykvpool.errors import KeyNotFound, TooFewNodes
from tests.pool.cluster import MIB, until

BLOCK = 64 * 1024


@pytest.fixture(params=["inproc", "tcp", "shm"])
async def three(request, make_cluster):
    """Three nodes whose loss is noticed soon."""
    config = CoreConfig(reconnect_grace_ms=200)
    async with make_cluster(fabrics=(request.param,), core_config=config) as cluster:
        for name in ("n0", "n1", "n2"):
            await cluster.node(name)
        yield cluster


async def test_copies_lie_on_distinct_nodes(three):
    client = await three.client()
    results = await client.put_batch([PutItem(f"k{i}", bytes([i]) * BLOCK) for i in range(20)], replicas=2)
    assert {(r.replicas, r.degraded) for r in results} == {(2, False)}
    for stat in await client.stat([f"k{i}" for i in range(20)]):
        nodes = [client.node_of(extent.segment) for extent in stat.extents]
        assert len(set(nodes)) == 2


async def test_more_copies_than_nodes_is_an_error_never_a_silent_one(three):
    client = await three.client()
    with pytest.raises(TooFewNodes, match="3"):
        await client.put("k", b"x" * BLOCK, replicas=4)
    assert await client.exists(["k"]) == [False]


async def test_fewer_copies_are_taken_where_the_caller_allows_it_and_are_reported(three):
    client = await three.client()
    result = await client.put("k", b"x" * BLOCK, replicas=4, min_replicas=2)
    assert (result.replicas, result.degraded) == (3, True)


async def test_the_preferred_node_gets_the_first_copy(three):
    client = await three.client()
    for i in range(6):
        await client.put(f"k{i}", b"x" * BLOCK, preferred_node="n1")
    for stat in await client.stat([f"k{i}" for i in range(6)]):
        assert client.node_of(stat.extents[0].segment) == "n1"


async def test_p8_one_death_costs_its_own_blocks_and_no_others(three):
    client = await three.client()
    keys = [f"k{i}" for i in range(60)]
    await client.put_batch([PutItem(key, key.encode() * 1_000) for key in keys])
    double = [f"d{i}" for i in range(30)]
    await client.put_batch([PutItem(key, key.encode() * 1_000) for key in double], replicas=2)
    home = {k: client.node_of(s.extents[0].segment) for k, s in zip(keys, await client.stat(keys), strict=True)}
    assert set(home.values()) == {"n0", "n1", "n2"}
    await three.nodes["n1"].stop()
    for key, value in zip(double, await client.get_batch(double), strict=True):
        assert value == key.encode() * 1_000
    for key, value in zip(keys, await client.get_batch(keys), strict=True):
        if home[key] == "n1":
            assert isinstance(value, KeyNotFound)
        else:
            assert value == key.encode() * 1_000
    assert await client.exists(keys) == [home[key] != "n1" for key in keys]


async def test_leaving_deregisters_at_once(three):
    client = await three.client()
    await client.put("k", b"x" * BLOCK, preferred_node="n2")
    await three.nodes["n2"].stop()
    assert await client.exists(["k"]) == [False]
    assert {segment.node for segment in (await client.state()).segments} == {"n0", "n1"}


async def test_a_node_that_vanishes_is_read_round_and_then_forgotten(three):
    """The control connection breaks without a word, and its fabrics no longer answer: as after kill -9."""
    client = await three.client()
    keys = [f"k{i}" for i in range(20)]
    await client.put_batch([PutItem(key, key.encode() * 1_000) for key in keys], replicas=2)
    victim = three.nodes["n0"]
    for server in victim._servers:
        await server.close()
    for key, value in zip(keys, await client.get_batch(keys), strict=True):
        assert value == key.encode() * 1_000, "the other copy is tried at once"
    result = await client.put("new", b"y" * BLOCK, replicas=2)
    assert result.replicas >= 1
    # Now its control connection goes too, for good.
    runner = victim.session._runner
    runner.cancel()
    await asyncio.wait([runner])
    victim.session._detach("gone")
    victim._stopping = True
    async with asyncio.timeout(10):
        while {segment.node for segment in (await client.state()).segments} != {"n1", "n2"}:
            await asyncio.sleep(0.01)
    for key, value in zip(keys, await client.get_batch(keys), strict=True):
        assert value == key.encode() * 1_000
    assert {stat.orphan for stat in await client.stat(keys)} == {False}


async def test_a_node_that_lost_its_session_lends_fresh_memory(make_cluster):
    config = CoreConfig(reconnect_grace_ms=50, session_ttl_ms=60_000)
    async with make_cluster(fabrics=("tcp",), core_config=config) as cluster:
        node = await cluster.node("n0", 4 * MIB)
        client = await cluster.client()
        await client.put("k", b"x" * BLOCK)
        generation = node.mount.memory.generation
        # Cut the control connection and keep the node from coming back within its grace.
        session = node.session
        dial = session._dialler.dial
        gate = asyncio.Event()

        async def held_back(*args):
            await gate.wait()
            return await dial(*args)

        session._dialler.dial = held_back
        session._line.stream.close()
        async with asyncio.timeout(10):
            while (await client.state()).segments:
                await asyncio.sleep(0.01)
        assert await client.exists(["k"]) == [False]
        gate.set()
        await until(lambda: node.mount is not None and node.mount.segment is not None
                    and node.mount.memory.generation != generation)  # fmt: skip
        await client.put("k", b"y" * BLOCK)
        assert await client.get("k") == b"y" * BLOCK
