"""Asking the catalogue: exists, match_prefix, get_replicas, stat, list_keys; and taking objects out of it."""

from __future__ import annotations

from typing import Any

import pytest

from pykvpool.errors import KeyNotFound, Leased
from pykvpool.model import commands
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Pin
from pykvpool.model.replies import Counted, Flags, Interned, KeyPage, Matched, ObjectStat, Stats
from tests.core.driver import Peer, World


@pytest.fixture
def client(world: World) -> Peer:
    world.node("n", 64 * 200)
    return world.client()


def scopes_of(client: Peer, count: int) -> tuple[Any, ...]:
    return client.ask(commands.Intern(tuple(Scope("m", rank=str(rank)) for rank in range(count))), Interned).scopes


def test_the_prefix_ends_at_the_first_miss_of_any_scope(client: Peer) -> None:
    one, two, three = scopes_of(client, 3)
    client.put(b"a", b"b", b"c", b"d", scope=one)
    client.put(b"a", b"b", b"d", scope=two)
    client.put(b"c", scope=three)

    def count(*scopes: Any) -> int:
        return client.ask(commands.MatchPrefix((b"a", b"b", b"c", b"d"), scopes), Matched).count

    assert (count(one), count(two), count(one, two), count(one, two, three), count(three)) == (4, 2, 2, 0, 0)
    assert (count(two, one), count(three, two, one)) == (2, 0), "in whatever order they are named"
    assert client.ask(commands.MatchPrefix((), (one,)), Matched) == Matched(0)


def test_scopes_asked_for_presence_answer_hash_by_hash_and_do_not_shorten_the_count(client: Peer) -> None:
    one, two = scopes_of(client, 2)
    client.put(b"a", b"b", b"c", scope=one)
    client.put(b"b", b"d", scope=two)
    matched = client.ask(commands.MatchPrefix((b"a", b"b", b"c", b"d"), (one, two), presence=(1,)), Matched)
    assert (matched.count, matched.presence) == (3, (b"\0\1\0\1",))
    both = client.ask(commands.MatchPrefix((b"a", b"d"), (one, two), presence=(1, 0)), Matched)
    assert (both.count, both.presence) == (2, (b"\0\1", b"\1\0"))


def test_a_hold_covers_the_matched_blocks_and_the_present_ones(world: World, client: Peer) -> None:
    one, two = scopes_of(client, 2)
    client.put(b"a", b"b", b"d", scope=one)
    client.put(b"b", b"c", scope=two)
    command = commands.MatchPrefix((b"a", b"b", b"c", b"d"), (one, two), presence=(1,), hold=True, lease_ms=4_000)
    matched = client.ask(command, Matched)
    assert (matched.count, matched.lease_ms) == (2, 4_000)
    leased = {
        (scope, key): client.ask(commands.Stat(scope, (key,)), Stats).objects[0].leases
        for scope, key in ((one, b"a"), (one, b"b"), (one, b"d"), (two, b"b"), (two, b"c"))
    }
    assert leased == {(one, b"a"): 1, (one, b"b"): 1, (one, b"d"): 0, (two, b"b"): 1, (two, b"c"): 1}
    assert matched.lease is not None
    client.release(matched.lease)
    assert not world.core._context.leases.by_id
    assert client.ask(commands.MatchPrefix((b"x",), (one,), hold=True), Matched).lease is None


def test_a_lease_is_never_longer_than_allowed(world: World, client: Peer) -> None:
    client.put(b"a")
    assert client.locate(b"a", lease_ms=10**9).lease_ms == world.config.max_lease_ms
    assert client.locate(b"a").lease_ms == world.config.lease_ms
    assert client.locate(b"x").lease is None


def test_one_object_twice_in_a_batch_is_leased_and_released_twice(world: World, client: Peer) -> None:
    client.put(b"a")
    lease = client.lease(b"a", b"a")
    client.remove(b"a", force=True)
    client.release(lease)
    assert world.free_bytes() == 64 * 200


def test_stat_tells_about_an_object_and_uses_it_not(world: World, client: Peer) -> None:
    client.chain(b"a", b"b", size=100)
    client.pin(b"b", Pin.SOFT)
    lease = client.lease(b"b")
    world.advance(250)
    stat, missing = client.ask(commands.Stat(world.scope, (b"b", b"x")), Stats).objects
    assert isinstance(stat, ObjectStat)
    assert (stat.size_bytes, stat.checksum, stat.pin, stat.leases, stat.depth, stat.orphan) == (
        100, 7, Pin.SOFT, 1, 1, False,
    )  # fmt: skip
    assert stat.idle_ms == 250
    assert missing.error().kind == "KeyNotFound"
    client.release(lease)


def test_a_put_with_a_stronger_pin_pins_what_is_there(world: World, client: Peer) -> None:
    client.put(b"a")
    client.put_start(b"a", pin=Pin.HARD)
    client.put_start(b"a", pin=Pin.SOFT)
    assert client.ask(commands.Stat(world.scope, (b"a",)), Stats).objects[0].pin == Pin.HARD


def test_remove_refuses_what_is_leased_or_hard_pinned_unless_forced(client: Peer) -> None:
    client.put(b"leased", b"free")
    client.put(b"pinned", pin=Pin.HARD)
    lease = client.lease(b"leased")
    for key in (b"leased", b"pinned"):
        with pytest.raises(Leased):
            client.remove(key)
        client.remove(key, force=True)
    client.remove(b"free")
    with pytest.raises(KeyNotFound):
        client.remove(b"free")
    client.release(lease)


@pytest.mark.parametrize("slice_objects", [1, 7, 2_000])
def test_remove_all_takes_what_matches_in_slices_and_counts_what_stays(new_world: Any, slice_objects: int) -> None:
    world = new_world(slice_objects=slice_objects)
    world.node("n", 64 * 200)
    client = world.client()
    other = client.ask(commands.Intern((Scope("other"),)), Interned).scopes[0]
    client.chain(*[b"x-%d" % number for number in range(20)])
    client.put(b"y-1", b"\xff\x00")
    client.put(b"x-1", scope=other)
    client.lease(b"x-3")
    client.pin(b"x-4", Pin.HARD)
    assert client.ask(commands.RemoveAll("default", "x-*"), Counted) == Counted(18, 2)
    assert client.exists(b"x-3", b"x-4", b"x-5", b"y-1") == [1, 1, 0, 1]
    assert client.ask(commands.RemoveAll("default", "0xff*"), Counted) == Counted(1, 0)
    assert client.ask(commands.RemoveAll(force=True), Counted) == Counted(4, 0)
    assert world.core._context.state.catalog.count == 0


@pytest.mark.parametrize("slice_objects", [1, 2_000])
def test_remove_all_of_scopes_leaves_every_other_scope_of_the_namespace(new_world: Any, slice_objects: int) -> None:
    world = new_world(slice_objects=slice_objects)
    world.node("n", 64 * 200)
    client = world.client()
    wanted = [Scope("ns", "model", rank) for rank in ("tp0", "tp1")]
    asked = client.ask(commands.Intern((*wanted, Scope("ns", "other", "tp0"))), Interned).scopes
    for scope in asked:
        client.put(b"a", b"b", scope=scope)
    client.ask(commands.MatchPrefix((b"a",), asked[:1], hold=True), Matched)
    assert client.ask(commands.RemoveAll(scopes=asked[:2]), Counted) == Counted(3, 1)
    assert client.ask(commands.RemoveAll(force=True, scopes=asked[:2]), Counted) == Counted(1, 0)
    left = [client.ask(commands.Exists(scope, (b"a", b"b")), Flags).flags for scope in asked]
    assert left == [b"\0\0", b"\0\0", b"\1\1"]


@pytest.mark.parametrize("limit", [1, 3, 1_000])
def test_pages_list_every_key_once_also_when_others_come_and_go(world: World, client: Peer, limit: int) -> None:
    keys = {b"k-%02d" % number for number in range(10)}
    client.put(*sorted(keys))
    other = client.ask(commands.Intern((Scope("other"),)), Interned).scopes[0]
    client.put(b"k-99", scope=other)
    client.put(b"gone", b"no")
    seen: list[bytes] = []
    cursor, pages = 0, 0
    while pages == 0 or cursor:
        page = client.ask(commands.ListKeys("default", "k-*", cursor, limit), KeyPage)
        assert len(page.keys) == len(page.sizes) == len(page.namespaces) <= limit
        seen += page.keys
        cursor, pages = page.next_cursor, pages + 1
        if pages == 1:
            client.remove(b"gone")
            client.put(b"z", b"zz")
    assert sorted(seen) == sorted(keys)
    assert set(page.namespaces) <= {"default"}


def test_a_page_looks_at_a_bounded_number_of_rows(new_world: Any) -> None:
    world = new_world(slice_objects=4)
    world.node("n", 64 * 200)
    client = world.client()
    client.put(*[b"%02d" % number for number in range(20)])
    page = client.ask(commands.ListKeys(pattern="19"), KeyPage)
    assert (page.keys, page.next_cursor) == ((), 8)


def test_lookups_are_counted(world: World, client: Peer) -> None:
    client.put(b"a", b"b")
    client.exists(b"a", b"x")
    client.ask(commands.MatchPrefix((b"a", b"b", b"x", b"y"), (world.scope,)), Matched)
    client.locate(b"a", b"x")
    assert world.core.counters["lookup_hashes_total"] == 2 + 4 + 2
    assert world.core.counters["lookup_hits_total"] == 1 + 2 + 1
