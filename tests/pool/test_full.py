"""P7: a full pool evicts, then writers wait in order, a bounded time, without deadlock; nothing is dropped silently."""

from __future__ import annotations

import asyncio

import pytest

from pykvpool.client import PutItem
from pykvpool.errors import InvalidArgument, NotReady, PoolFull
from pykvpool.model.objects import Pin
from tests.pool.cluster import MIB, until

BLOCK = 64 * 1024


def block(client: int, number: int) -> bytes:
    return (client * 1_000_003 + number).to_bytes(8, "little") * (BLOCK // 8)


@pytest.fixture(params=["inproc", "tcp", "shm"])
async def small(request, make_cluster):
    """A pool of 4 MiB."""
    async with make_cluster(fabrics=(request.param,)) as cluster:
        await cluster.node("n0", 4 * MIB)
        yield cluster


async def test_p7_four_times_the_pool_is_written_and_read_by_several_clients_without_a_failure(small):
    clients = [await small.client() for _ in range(3)]
    total = 4 * 4 * MIB // BLOCK

    async def write_then_read(number: int) -> int:
        client, hits = clients[number], 0
        for start in range(0, total, 16):
            keys = [f"{number}/{i}" for i in range(start, start + 16)]
            items = [PutItem(key, block(number, start + i)) for i, key in enumerate(keys)]
            for result in await client.put_batch(items):
                assert not isinstance(result, Exception), result
            for i, value in enumerate(await client.get_batch(keys)):
                if isinstance(value, bytes):
                    assert value == block(number, start + i)
                    hits += 1
        return hits

    hits = await asyncio.gather(*(write_then_read(number) for number in range(3)))
    assert all(count > 0 for count in hits)


async def test_one_batch_larger_than_the_pool_succeeds(small):
    client = await small.client()
    count = 3 * 4 * MIB // BLOCK
    results = await client.put_batch([PutItem(f"k{i}", block(9, i)) for i in range(count)])
    assert [r for r in results if isinstance(r, Exception)] == []
    assert await client.get(f"k{count - 1}") == block(9, count - 1)


async def test_a_writer_that_does_not_wait_evicts_what_may_go_and_is_refused_the_rest_at_once(small):
    client = await small.client()
    keys = [f"k{i}" for i in range(4 * MIB // BLOCK)]
    await client.put_batch([PutItem(key, block(0, i)) for i, key in enumerate(keys)])
    held = (await client.match_prefix(keys[2:], hold=True)).hold  # all but two
    items = [PutItem(f"new{i}", block(1, i)) for i in range(5)]
    results = await client.put_batch(items, wait=False, timeout_s=1e6)
    assert [isinstance(result, PoolFull) for result in results] == [False, False, True, True, True]
    held.release()


async def test_a_writer_that_does_not_wait_is_told_that_another_one_writes_the_key(small):
    client, other = await small.client(), await small.client()
    keys = [f"k{i}" for i in range(4 * MIB // BLOCK)]
    await client.put_batch([PutItem(key, block(0, i)) for i, key in enumerate(keys)])
    held = (await client.match_prefix(keys, hold=True)).hold
    waiting = asyncio.create_task(other.put("new", block(1, 0)))
    await until(lambda: small.core._context.waiting.undecided)
    with pytest.raises(NotReady):
        await client.put("new", block(1, 0), wait=False)
    held.release()
    await waiting


async def test_p7_a_writer_waits_and_gets_room_as_soon_as_a_lease_ends(small):
    client, other = await small.client(), await small.client()
    keys = [f"k{i}" for i in range(4 * MIB // BLOCK)]
    await client.put_batch([PutItem(key, block(1, i)) for i, key in enumerate(keys)])
    match = await client.match_prefix(keys, hold=True)
    assert match.count == len(keys)
    waiting = asyncio.ensure_future(other.put("late", block(2, 0)))
    async with asyncio.timeout(10):
        while (await client.state()).waiting == 0:
            await asyncio.sleep(0.005)
    assert not waiting.done()
    match.hold.release()
    async with asyncio.timeout(5):
        assert (await waiting).replicas == 1
    assert await other.get("late") == block(2, 0)


async def test_p7_where_one_client_leases_everything_the_error_says_so(small):
    client, other = await small.client("greedy"), await small.client()
    keys = [f"k{i}" for i in range(4 * MIB // BLOCK)]
    await client.put_batch([PutItem(key, block(1, i)) for i, key in enumerate(keys)])
    match = await client.match_prefix(keys, hold=True)
    with pytest.raises(PoolFull, match="greedy") as caught:
        await other.put("late", block(2, 0), timeout_s=3)
    assert caught.value.retryable
    match.hold.release()
    await other.put("late", block(2, 0))


async def test_hard_pinned_blocks_are_never_evicted_and_the_error_counts_them(small):
    client = await small.client()
    count = 4 * MIB // BLOCK
    await client.put_batch([PutItem(f"k{i}", block(1, i)) for i in range(count)], pin=Pin.HARD)
    with pytest.raises(PoolFull, match="pinned"):
        await client.put("late", block(2, 0), timeout_s=3)
    assert all(await client.exists([f"k{i}" for i in range(count)]))


async def test_an_object_beyond_every_segment_is_refused_at_once(small):
    client = await small.client()
    with pytest.raises(InvalidArgument, match=r"4194304|4 MiB"):
        await client.put("huge", bytes(5 * MIB))


async def test_a_cancelled_put_leaves_no_room_taken(small):
    client, other = await small.client(), await small.client()
    keys = [f"k{i}" for i in range(4 * MIB // BLOCK)]
    await client.put_batch([PutItem(key, block(1, i)) for i, key in enumerate(keys)])
    match = await client.match_prefix(keys, hold=True)
    waiting = asyncio.ensure_future(other.put("late", block(2, 0)))
    async with asyncio.timeout(10):
        while (await client.state()).waiting == 0:
            await asyncio.sleep(0.005)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(10):
        while (await client.state()).waiting:
            await asyncio.sleep(0.005)
    match.hold.release()
    await other.put("late", block(3, 0))
    assert await other.get("late") == block(3, 0)
    assert (await client.state()).open_puts == 0
