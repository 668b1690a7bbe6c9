"""The client's verbs end to end, over every fabric of one host."""

from __future__ import annotations

import asyncio

import pytest

from pykvpool.client import PutItem, RangeItem
from pykvpool.errors import Closed, InvalidArgument, KeyConflict, KeyNotFound, LimitExceeded, StaleView
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Pin, Vouch
from tests.pool.cluster import MIB


def pattern(size_bytes: int, seed: int = 1) -> bytes:
    step = bytes((i * 31 + seed * 17) % 251 for i in range(251))
    return (step * (size_bytes // 251 + 1))[:size_bytes]


async def test_what_was_put_is_what_is_got(pool):
    client = await pool.client()
    for size in (1, 63, 4_096, 100_003, 3 * MIB):
        value = pattern(size, size)
        result = await client.put(f"k{size}", value)
        assert (result.size_bytes, result.existed, result.replicas, result.degraded) == (size, False, 1, False)
        assert await client.get(f"k{size}") == value
    assert result.scheme == pool.fabrics[0]


async def test_a_second_put_of_a_key_moves_nothing_and_keeps_the_first_bytes(pool):
    client = await pool.client()
    await client.put("k", b"first")
    again = await client.put("k", b"other")
    assert again.existed and again.replicas == 0
    assert await client.get("k") == b"first"


async def test_another_size_under_a_key_is_a_conflict(pool):
    client = await pool.client()
    await client.put("k", b"12345")
    with pytest.raises(KeyConflict):
        await client.put("k", b"123456")
    assert await client.get("k") == b"12345"


async def test_a_missing_key_is_not_an_empty_value(pool):
    client = await pool.client()
    with pytest.raises(KeyNotFound, match=r"^nobody: no readable object"):
        await client.get("nobody")
    assert client.statistics().get_misses == 1


async def test_every_question_that_finds_nothing_names_the_key(pool):
    client = await pool.client()
    errors = [
        *await client.stat(["nobody"]),
        *await client.remove_batch(["nobody"]),
        *await client.pin(["nobody"]),
        *await client.get_batch([b"\xff\x00"]),
    ]
    with pytest.raises(KeyNotFound, match=r"^nobody: "):
        await client.view("nobody")
    assert [error.message.partition(":")[0] for error in errors] == ["nobody", "nobody", "nobody", "0xff00"]


async def test_pieces_are_gathered_and_scattered(pool):
    client = await pool.client()
    pieces = [pattern(16_384, i) for i in range(64)]
    await client.put("pieces", pieces)
    targets = [bytearray(7_000) for _ in range(200)]
    result = await client.get_into("pieces", targets)
    assert result.size_bytes == 64 * 16_384
    assert result.vouch is Vouch.CHECKSUM
    assert result.scheme == pool.fabrics[0] and result.node == "n0"
    assert b"".join(targets)[: result.size_bytes] == b"".join(pieces)


async def test_a_batch_gives_one_result_per_key_and_a_bad_one_costs_only_itself(pool):
    client = await pool.client()
    results = await client.put_batch(
        [PutItem("a", b"A"), PutItem("", b"x"), PutItem("b", b""), PutItem("k" * 2_000, b"x"), PutItem("c", b"C")]
    )
    assert [type(r) for r in results[1:4]] == [InvalidArgument] * 3
    assert results[0].size_bytes == results[4].size_bytes == 1
    got = await client.get_batch(["a", "nobody", "c", ""])
    assert got[0] == b"A" and got[2] == b"C"
    assert isinstance(got[1], KeyNotFound) and isinstance(got[3], InvalidArgument)
    assert "nobody" in got[1].message


async def test_one_batch_may_hold_a_key_twice(pool):
    client = await pool.client()
    first, second = await client.put_batch([PutItem("k", b"one"), PutItem("k", b"two")])
    assert not first.existed and second.existed
    assert await client.get("k") == b"one"


async def test_100_000_keys_in_one_call_are_all_answered(pool):
    client = await pool.client()
    keys = [f"k{i}" for i in range(100_000)]
    await client.put_batch([PutItem(keys[i], b"x") for i in range(1_000)])
    found = await client.exists(keys)
    assert found[:1_000] == [True] * 1_000
    assert not any(found[1_000:])
    with pytest.raises(LimitExceeded):
        await client.match_prefix(keys)


async def test_a_buffer_that_is_too_small_is_refused_and_not_touched(pool):
    client = await pool.client()
    await client.put("k", b"0123456789")
    target = bytearray(b"........")
    with pytest.raises(InvalidArgument, match="k"):
        await client.get_into("k", target)
    assert target == b"........"


async def test_a_view_shows_the_bytes_where_they_lie(pool):
    client = await pool.client()
    value = pattern(MIB)
    await client.put("k", value)
    async with await client.view("k") as view:
        assert view.data == value
        assert view.data.readonly
        assert view.zero_copy == (pool.fabrics[0] != "tcp")
    with pytest.raises(KeyNotFound):
        await client.view("nobody")


async def test_match_prefix_stops_at_the_first_miss_in_any_scope(pool):
    client = await pool.client()
    full, window = Scope("m", "f", "tp0", 0), Scope("m", "f", "tp0", 1)
    hashes = [bytes([i]) * 32 for i in range(10)]
    chain = [None, *hashes]
    await client.put_batch([PutItem(h, b"x" * 64, p) for h, p in zip(hashes[:7], chain, strict=False)], scope=full)
    await client.put_batch([PutItem(h, b"x" * 64) for h in hashes[5:9]], scope=window)
    both = await client.match_prefix(hashes, [full, window])
    assert both.count == 0
    match = await client.match_prefix(hashes, [full, window], presence=[1], hold=True)
    assert match.count == 7
    assert match.presence == (tuple([False] * 5 + [True] * 4 + [False]),)
    async with match.hold as hold:
        assert hold.trusted


async def test_removed_pinned_listed_and_counted(pool):
    client = await pool.client(namespace="people")
    await client.put_batch([PutItem(f"user-{i}", b"x" * 100) for i in range(10)])
    await client.put("other", b"y")
    listed = [k async for k in client.list_keys("user-*")]
    assert sorted(k.key for k in listed) == sorted(f"user-{i}".encode() for i in range(10))
    assert {k.namespace for k in listed} == {"people"} and {k.size_bytes for k in listed} == {100}
    assert await client.pin(["user-3"], Pin.HARD) == [None]
    [stat] = await client.stat(["user-3"])
    assert stat.pin is Pin.HARD and stat.size_bytes == 100
    assert client.node_of(stat.extents[0].segment) == "n0"
    removed = await client.remove_all("user-*")
    assert (removed.count, removed.kept) == (9, 1)
    assert await client.unpin(["user-3"]) == [None]
    await client.remove("user-3")
    with pytest.raises(KeyNotFound):
        await client.remove("user-3")
    assert await client.exists(["user-3", "other"]) == [False, True]
    assert await client.touch(["user-3", "other"]) == [False, True]


async def test_namespaces_do_not_see_each_other(pool):
    red, blue = await pool.client(namespace="red"), await pool.client(namespace="blue")
    await red.put("k", b"red")
    await blue.put("k", b"blue!")
    assert (await red.get("k"), await blue.get("k")) == (b"red", b"blue!")
    assert (await red.remove_all()).count == 1
    assert await blue.get("k") == b"blue!"


async def test_p2_a_view_that_outlives_its_client_is_stale_as_the_goodbye_ended_its_lease(pool):
    client = await pool.client()
    await client.put("k", pattern(MIB))
    view = await client.view("k")
    await view.__aenter__()
    await client.close()
    if not view.zero_copy:
        assert view.data == pattern(MIB)
        return
    with pytest.raises(StaleView):
        _ = view.data
    with pytest.raises(StaleView):
        await view.__aexit__(None, None, None)


async def test_a_close_that_is_cancelled_goes_on_and_the_next_one_waits_for_it(pool):
    client = await pool.client("leaver")
    await client.put("k", pattern(MIB))
    closing = asyncio.ensure_future(client.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await client.close()
    assert [s.name for s in (await (await pool.client("witness")).state()).sessions if s.name == "leaver"] == []


async def test_a_closed_client_says_so(pool):
    client = await pool.client()
    await client.put("k", b"v")
    await client.close()
    await client.close()
    with pytest.raises(Closed):
        await client.get("k")
    with pytest.raises(Closed):
        await client.put("k", b"v")


async def test_a_reader_may_not_write(pool):
    writer, reader = await pool.client(), await pool.client(role="reader")
    await writer.put("k", b"v")
    assert await reader.get("k") == b"v"
    with pytest.raises(InvalidArgument, match="reader"):
        await reader.put("other", b"v")
    with pytest.raises(InvalidArgument, match="reader"):
        await reader.remove("k")


async def test_parts_of_objects_are_read_over_every_fabric(pool):
    client = await pool.client()
    value = pattern(3 * MIB)
    await client.put("k", value)
    head, tail = bytearray(5), bytearray(2 * MIB)
    results = await client.get_ranges_into([RangeItem("k", 7, 5, head), RangeItem("k", MIB, 2 * MIB, tail)])
    assert [result.size_bytes for result in results] == [5, 2 * MIB]
    assert (head, tail) == (value[7:12], value[MIB:])
    [beyond, small] = await client.get_ranges_into(
        [RangeItem("k", MIB, 3 * MIB, bytearray(3 * MIB)), RangeItem("k", 0, 6, head)]
    )
    assert isinstance(beyond, InvalidArgument) and isinstance(small, InvalidArgument)
    assert client.statistics().bytes_read == {pool.fabrics[0]: 2 * MIB + 5}


async def test_a_buffer_is_made_when_the_size_is_known_and_only_for_what_is_there(pool):
    client = await pool.client()
    await client.put("k", b"12345")
    made = {}
    results = await client.get_into_new(
        ["k", "nobody"], lambda position, size_bytes: made.setdefault(position, bytearray(size_bytes))
    )
    assert made == {0: bytearray(b"12345")}
    assert results[0].size_bytes == 5
    assert isinstance(results[1], KeyNotFound)
