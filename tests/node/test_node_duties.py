"""What the master asks of a node, end to end: hash an unsummed object, prove that a writer is fenced, lend anew."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from pykvpool.core.config import CoreConfig
from pykvpool.errors import ConfigError, InvalidArgument, SegmentGone, SessionExpired, TransferFailed, Unavailable
from pykvpool.fabric.base import Write
from pykvpool.fabric.registry import ServerSettings, build_servers
from pykvpool.memory.copying import checksum
from pykvpool.model.commands import PutEnd, PutStart
from pykvpool.model.instructions import DropSegment, Fence
from pykvpool.model.keys import Scope
from pykvpool.model.replies import PutGrant, PutStarted
from pykvpool.node import Node, NodeSettings
from pykvpool.runtime import real_runtime
from tests.pool.cluster import MIB, Cluster, until

VALUE = b"some block" * 1_000


async def open_put(client, key: bytes) -> tuple[PutGrant, Write]:
    """A put that was started and not ended, and the write it allows."""
    scope = await client._link.scope_id(Scope(), client._begin(10))
    reply = await client._link.session.call(PutStart(scope, (key,), (len(VALUE),)), 10)
    assert isinstance(reply, PutStarted)
    client._link.learn(reply.segments)
    [grant] = reply.entries
    assert isinstance(grant, PutGrant)
    [extent] = grant.extents
    write = Write(client._link.segment(extent.segment), extent.offset, extent.length, [memoryview(VALUE)], grant.put_id)
    return grant, write


async def segment_state(client):
    [segment] = (await client.state()).segments
    return segment


async def test_the_owner_hashes_an_object_that_was_committed_unsummed(pool):
    client = await pool.client()
    grant, write = await open_put(client, b"k")
    [outcome] = await client._fabrics.router.write([write], 10)
    assert outcome.error is None
    await client._link.session.call(PutEnd((grant.put_id,), (None,), (1,)), 10)
    async with asyncio.timeout(10):
        while (await client.stat(["k"]))[0].checksum is None:
            await asyncio.sleep(0.005)
    assert (await client.stat(["k"]))[0].checksum == checksum([memoryview(VALUE)])
    assert await client.get("k") == VALUE


async def test_p2_a_superseded_writers_extent_stays_in_quarantine_until_the_node_says_that_it_is_fenced(make_cluster):
    async with make_cluster(fabrics=("tcp",)) as cluster:
        node = await cluster.node("n0")
        zombie = await cluster.client("writer")
        _, write = await open_put(zombie, b"k")
        [outcome] = await zombie._fabrics.router.write([write], 10)
        assert outcome.error is None
        gate, fences = asyncio.Event(), []
        fence = node.mount.fence

        async def held_back(*about):
            fences.append(about)
            await gate.wait()
            await fence(*about)

        node.mount.fence = held_back
        heir = await cluster.client("writer")
        await until(lambda: fences)
        assert fences[0][0] == "writer"
        assert fences[0][2] is True, "the session is over: its peer is banned"
        assert (await segment_state(heir)).quarantined_bytes >= len(VALUE)
        assert (await segment_state(heir)).used_bytes == 0
        gate.set()
        async with asyncio.timeout(10):
            while (await segment_state(heir)).quarantined_bytes:
                await asyncio.sleep(0.005)
        [late] = await zombie._fabrics.router.write([write], 5)
        assert late.error is not None, "nothing of the zombie lands any more"
        with pytest.raises(SessionExpired):
            await zombie.put("other", b"x")
        await heir.put("k", VALUE)
        assert await heir.get("k") == VALUE


async def test_p2_a_live_shm_writer_cannot_be_fenced_its_extent_stays_counted(make_cluster):
    config = CoreConfig(put_ttl_ms=50)
    async with make_cluster(fabrics=("shm",), core_config=config) as cluster:
        await cluster.node("n0")
        writer, other = await cluster.client(), await cluster.client()
        grant, write = await open_put(writer, b"k")
        [outcome] = await writer._fabrics.router.write([write], 10)
        assert outcome.error is None
        async with asyncio.timeout(10):
            while (await segment_state(other)).quarantined_bytes == 0:
                await asyncio.sleep(0.005)
        for _ in range(20):
            await other.put("again", VALUE)
            await other.remove("again")
        assert (await segment_state(other)).quarantined_bytes >= len(VALUE)
        # Its own late put_end is refused, and is the evidence that frees the extent.
        reply = await writer._link.session.call(PutEnd((grant.put_id,), (None,), (1,)), 10)
        assert reply.errors[0].code == -709
        assert (await segment_state(other)).quarantined_bytes == 0


async def test_p5_after_a_remount_nothing_reaches_the_old_generation(pool):
    node = pool.nodes["n0"]
    writer, other = await pool.client(), await pool.client()
    _, write = await open_put(writer, b"k")
    [outcome] = await writer._fabrics.router.write([write], 10)
    assert outcome.error is None
    old = node.mount
    withdrawn = []
    for server in old._servers:
        withdraw = server.withdraw

        async def seen(generation, withdraw=withdraw):
            withdrawn.append(generation)
            await withdraw(generation)

        server.withdraw = seen
    node._on_instruction(DropSegment(old.segment))
    await until(lambda: node.mount is not None and node.mount is not old and node.mount.segment is not None)
    assert withdrawn == [old.memory.generation] * len(old._servers)
    [late] = await writer._fabrics.router.write([write], 10)
    assert isinstance(late.error, SegmentGone | TransferFailed | Unavailable)
    await other.put("k2", VALUE)
    assert await other.get("k2") == VALUE


async def test_a_duty_that_was_ended_before_it_began_leaves_nothing_that_was_never_awaited(pool):
    node = pool.nodes["n0"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        node._on_instruction(Fence(1, "writer", 1, node.mount.segment, False, 1))
        await node.stop()
        gc.collect()
    assert [str(each.message) for each in caught] == []


async def test_two_nodes_of_one_name_the_later_lends_and_the_earlier_ends_with_the_reason(make_cluster, caplog):
    async with make_cluster(fabrics=("tcp",)) as cluster:
        first = await cluster.node("twin")
        await cluster.node("twin")
        async with asyncio.timeout(10):
            reason = await first.wait_over()
        assert reason == (
            "session 'twin' is over: superseded by a newer session of its name: give each process a name of its own"
        )
        assert "node twin lost its session" in caplog.text
        assert "its memory is destroyed, and the node ends" in caplog.text
        assert "lent anew" not in caplog.text
        client = await cluster.client()
        assert [segment.node for segment in (await client.state()).segments] == ["twin"]


async def test_a_node_without_a_master_says_so_and_leaves_nothing_open(tmp_path):
    runtime = real_runtime()
    servers = build_servers(("tcp", "shm"), ServerSettings(runtime, shm_path=str(tmp_path / "n.sock")))
    node = Node(NodeSettings("n", ("tcp://127.0.0.1:1",), MIB), servers, runtime)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        await node.start()
    assert not (tmp_path / "n.sock").exists()
    runtime.offload.close()


async def test_a_segment_that_cannot_be_had_is_refused_with_what_there_is(tmp_path):
    with pytest.raises(InvalidArgument):
        Node(NodeSettings("n", ("tcp://127.0.0.1:1",), 0), (), real_runtime())
    async with Cluster(tmp_path) as cluster:
        with pytest.raises(ConfigError, match="memory"):
            await cluster.node("huge", 1 << 45)
        assert (await (await cluster.client()).state()).segments == ()
