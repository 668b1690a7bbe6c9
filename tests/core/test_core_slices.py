"""No step does more than its slice of the work, and what others do between two slices is honoured: nothing is evicted
that was used, leased, pinned or given a child meanwhile, and still it is all that the room needs, or nothing.

Work is counted, not timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from pykvpool.core.eviction.base import LOOK_AGAIN, LOOK_ROWS
from pykvpool.core.eviction.lazy_heap import LazyHeap
from pykvpool.core.eviction.lru import Lru
from pykvpool.core.eviction.plan import EVICT_UNITS, TAKE_UNITS
from pykvpool.core.handlers import lookup
from pykvpool.errors import KeyNotFound, PoolError, PoolFull
from pykvpool.model import commands
from pykvpool.model.events import Tick
from pykvpool.model.facts import ObjectCommitted, ObjectRemoved, PutOpened, SegmentGoing
from pykvpool.model.objects import ObjectInfo, Pin
from pykvpool.model.replies import Done, Flags, Located, Matched, ObjectStat, Pending, PutGrant, PutStarted, Stats
from tests.core.driver import Peer, World, error_of


def names(count: int, prefix: bytes = b"k") -> list[bytes]:
    return [prefix + b"%04d" % number for number in range(count)]


def full_world(new_world: Any, count: int, slice_objects: int, **config: Any) -> tuple[World, Peer, list[bytes]]:
    """One node with `count` blocks of 64 bytes, all taken."""
    world = new_world(slice_objects=slice_objects, **config)
    world.node("n", 64 * count)
    client, keys = world.client(), names(count)
    for key in keys:
        client.put(key)
    return world, client, keys


def start(client: Peer, key: bytes, size: int, **options: Any) -> int:
    return client.send(commands.PutStart(client.world.scope, (key,), (size,), **options))


def steps(world: World, between: Callable[[], None] = lambda: None) -> list[int]:
    """Step while there is something to do now, with `between` before each step; the facts of each step, counted."""
    counts = []
    while world.core.next_deadline() == world.now:
        between()
        counts.append(len(world.step(Tick()).facts))
        assert len(counts) < 10_000
    return counts


def evicted(world: World) -> list[bytes]:
    return [fact.hash for fact in world.facts_of(ObjectRemoved) if fact.reason == "evicted"]


def entry_of(client: Peer, request: int) -> Any:
    entries = client.entries(request)
    assert entries is not None
    return entries[0]


def outcome(client: Peer, key: bytes) -> Any:
    """What becomes of a small put, however many steps that takes."""
    request = start(client, key, 64)
    steps(client.world)
    entry = entry_of(client, request)
    return client.wait(entry.ticket)[0] if isinstance(entry, Pending) else entry


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """[rows that the policy was asked for since somebody last set it to 0]"""
    count, original = [0], Lru.take

    def take(self: Lru, now: int) -> int | None:
        count[0] += 1
        return original(self, now)

    monkeypatch.setattr(Lru, "take", take)
    return count


@pytest.mark.parametrize("wait_ms", [0, 30_000])
def test_evicting_many_takes_many_steps_each_with_a_bounded_part(
    new_world: Any, takes: list[int], wait_ms: int
) -> None:
    world, client, keys = full_world(new_world, 200, 100)
    takes[0] = 0
    request = start(client, b"big", 64 * 200, wait_ms=wait_ms)
    most = []

    def between() -> None:
        most.append(takes[0])
        takes[0] = 0

    counts = steps(world, between)
    assert max(most) <= 100 // TAKE_UNITS + 1 and max(counts) <= 100 // EVICT_UNITS + 1
    entry = entry_of(client, request)
    if wait_ms:
        assert isinstance(entry, Pending) and not entry.in_progress
        entry = client.wait(entry.ticket)[0]
    assert isinstance(entry, PutGrant)
    assert sorted(evicted(world)) == keys
    assert isinstance(world.facts[-1], PutOpened)


def test_evicting_a_few_is_answered_in_the_same_step(new_world: Any) -> None:
    world, client, keys = full_world(new_world, 64, 2_000)
    assert isinstance(entry_of(client, start(client, b"big", 64 * 16, wait_ms=0)), PutGrant)
    assert sorted(evicted(world)) == keys[:16]


def test_a_batch_that_evicts_for_every_key_is_granted_whole(new_world: Any) -> None:
    world, client, keys = full_world(new_world, 100, 200)
    request = client.send(commands.PutStart(world.scope, tuple(names(100, b"n")), (64,) * 100))
    steps(world)
    entries = client.entries(request)
    assert entries is not None and all(isinstance(entry, PutGrant) for entry in entries)
    assert evicted(world) == keys


def test_a_search_that_finds_nothing_looks_at_a_part_in_each_step(new_world: Any, takes: list[int]) -> None:
    world, client, keys = full_world(new_world, 400, 40)
    client.lease(*keys)
    facts, most = len(world.facts), [0]
    takes[0] = 0
    request = start(client, b"more", 64, wait_ms=0)

    def between() -> None:
        most.append(takes[0])
        takes[0] = 0

    steps(world, between)
    assert len(most) > 400 // (40 + LOOK_ROWS) and max(most) <= 40 + LOOK_ROWS + 1
    error = error_of(entry_of(client, request))
    assert isinstance(error, PoolFull) and error.fields["leased_objects"] == 400
    assert len(world.facts) == facts


def test_a_heap_of_old_entries_is_brought_up_to_date_bit_by_bit() -> None:
    policy = Lru()
    heap: LazyHeap = policy._heap
    for row in range(3 * LOOK_ROWS):
        policy._stamps.set(row, 1)
        heap.insert(row, 0)
    policy.touch(range(3 * LOOK_ROWS - 1), 2)
    policy.touch([3 * LOOK_ROWS - 1], 3)
    answers = [policy.take(4) for _ in range(4)]
    assert answers[:3] == [LOOK_AGAIN] * 3 and answers[3] == 0


@pytest.mark.parametrize("event", ["used", "leased", "pinned", "given a child", "removed"])
@pytest.mark.parametrize("at", [1, 5, 9, 13, 17])
def test_p6_a_block_that_something_happens_to_is_not_evicted_by_a_search_under_way(
    new_world: Any, event: str, at: int
) -> None:
    world = new_world(slice_objects=8)
    world.node("n", 64 * 13)
    client, other, keys = world.client(), world.client("other"), names(12)
    for key in keys:
        client.put(key)
    child = other.put_start(b"child", parents=(keys[0],))[0]
    request = start(client, b"big", 64 * 4)
    for _ in range(at):
        if world.core.next_deadline() == world.now:
            world.step(Tick())
    gone_before = keys[0] in evicted(world) or world.core._context.state.evictor.sealed
    if event == "used":
        other.send(commands.Touch(world.scope, (keys[0],)))
    elif event == "leased":
        other.send(commands.GetReplicas(world.scope, (keys[0],), 60_000))
    elif event == "pinned":
        other.send(commands.SetPin(world.scope, (keys[0],), Pin.HARD))
    elif event == "given a child":
        other.send(commands.PutEnd((child.put_id,), (7,), (1,)))
    else:
        other.send(commands.Remove(world.scope, (keys[0],)))
    steps(world)
    entry = entry_of(client, request)
    assert isinstance(client.wait(entry.ticket)[0] if isinstance(entry, Pending) else entry, PutGrant)
    if event == "removed":
        assert len(evicted(world)) <= 4
    elif not gone_before:
        assert keys[0] not in evicted(world)


def test_p6_what_is_being_evicted_is_as_good_as_gone_for_everybody(new_world: Any) -> None:
    world = new_world(slice_objects=20)
    world.node("n", 64 * 41)
    client, other, keys = world.client(), world.client("other"), names(40)
    client.chain(*keys)
    child = other.put_start(b"child", parents=(keys[0],))[0]
    start(client, b"big", 64 * 40)
    while not evicted(world):
        world.step(Tick())
    root, evictor = keys[0], world.core._context.state.evictor
    assert evictor.sealed and root not in evicted(world), "only the first slice is done"
    exists = other.send(commands.Exists(world.scope, (root,)))
    located = other.send(commands.GetReplicas(world.scope, (root,)))
    again = start(other, root, 64)
    end = other.send(commands.PutEnd((child.put_id,), (7,), (1,)))
    assert root not in evicted(world) and other.reply(end) is None, "a child waits for its parent to be gone"
    assert other.reply(exists) == Flags(b"\0")
    reply = other.reply(located)
    assert isinstance(reply, Located) and isinstance(error_of(reply.objects[0]), KeyNotFound) and reply.lease is None
    assert isinstance(entry_of(other, again), Pending)
    steps(world)
    assert evicted(world)[:40] == keys[::-1], "no block goes before its children"
    assert isinstance(other.reply(end), Done)
    facts = world.facts
    gone = next(at for at, fact in enumerate(facts) if isinstance(fact, ObjectRemoved) and fact.hash == root)
    assert any(isinstance(fact, ObjectCommitted) and fact.put_id == child.put_id for fact in facts[gone:])


def test_p7_a_search_that_is_spoiled_at_every_step_comes_to_an_end(new_world: Any) -> None:
    world, client, keys = full_world(new_world, 60, 40)
    request, random = start(client, b"big", 64 * 60, wait_ms=0), Random(1)
    other = world.client("other")
    count = 0
    while client.entries(request) is None:
        other.send(commands.Touch(world.scope, (random.choice(keys), random.choice(keys))))
        count += 1
        assert count < 1_000
    assert isinstance(entry_of(client, request), PutGrant)
    assert sorted(evicted(world)) == keys


def test_p6_a_writer_that_gives_up_during_the_search_costs_nobody_a_block(new_world: Any) -> None:
    world, client, keys = full_world(new_world, 60, 40)
    facts = len(world.facts)
    pending = entry_of(client, start(client, b"big", 64 * 60))
    assert isinstance(pending, Pending)
    for _ in range(5):
        world.step(Tick())
    client.fine(commands.PutForget((pending.ticket,)))
    steps(world)
    assert len(world.facts) == facts and client.exists(*keys) == [1] * 60
    assert isinstance(outcome(client, b"small"), PutGrant)
    assert evicted(world) == keys[:1], "and the order is what it was"


def test_p7_nobody_is_placed_while_room_is_made_for_another(new_world: Any) -> None:
    world, client, keys = full_world(new_world, 60, 40)
    small = world.client("small")
    big = start(client, b"big", 64 * 60)
    late = start(small, b"late", 64)
    assert isinstance(entry_of(client, big), Pending) and isinstance(entry_of(small, late), Pending)
    client.remove(keys[7])
    steps(world)
    grant = client.wait(entry_of(client, big).ticket)[0]
    assert isinstance(grant, PutGrant) and grant.extents[0].length == 64 * 60
    assert isinstance(small.wait(entry_of(small, late).ticket)[0], Pending)
    client.put_end(grant.put_id)
    steps(world)
    assert isinstance(small.wait(entry_of(small, late).ticket)[0], PutGrant)


def test_p7_a_put_that_does_not_wait_is_not_refused_for_a_search_that_is_nearly_over(new_world: Any) -> None:
    world, client, _ = full_world(new_world, 60, 40)
    other = world.client("other")
    big = start(client, b"big", 64 * 20, wait_ms=0)
    small = start(other, b"small", 64, wait_ms=0)
    assert client.reply(big) is None and other.reply(small) is None
    steps(world)
    assert isinstance(entry_of(client, big), PutGrant) and isinstance(entry_of(other, small), PutGrant)


class Meddler:
    """Does something at random, as other sessions, and knows what must not be evicted now."""

    def __init__(self, world: World, keys: list[bytes], seed: int) -> None:
        self.world, self.keys, self.random = world, keys, Random(seed)
        self.peer = world.client("meddler")
        self.leased: Counter[bytes] = Counter()
        self.pinned: set[bytes] = set()
        self.leases: list[tuple[Any, list[bytes]]] = []
        self.open = [
            entry.put_id
            for key in self.random.sample(keys, 6)
            for entry in self.peer.put_start(b"child of " + key, size=64, parents=(key,))
            if isinstance(entry, PutGrant)
        ]
        self.parent_of = {b"child of " + key: key for key in keys}
        self.unknown: list[tuple[int, list[bytes]]] = []

    def act(self) -> None:
        some = self.random.sample(self.keys, 2)
        kind = self.random.choice(["touch", "lease", "lease", "release", "pin", "unpin", "remove", "child", "", "", ""])
        if kind == "touch":
            self.peer.send(commands.Touch(self.world.scope, tuple(some)))
        elif kind == "lease":
            self.unknown.append((self.peer.send(commands.GetReplicas(self.world.scope, tuple(some), 60_000)), some))
        elif kind == "release" and self.leases:
            lease, held = self.leases.pop(self.random.randrange(len(self.leases)))
            self.leased -= Counter(held)
            self.peer.send(commands.Release((lease,)))
        elif kind == "pin":
            request = self.peer.send(commands.SetPin(self.world.scope, (some[0],), Pin.HARD))
            reply = self.peer.reply(request)
            if isinstance(reply, Done) and not reply.errors:
                self.pinned.add(some[0])
        elif kind == "unpin" and self.pinned:
            key = self.random.choice(sorted(self.pinned))
            self.pinned.discard(key)
            self.peer.send(commands.SetPin(self.world.scope, (key,), Pin.NONE))
        elif kind == "remove" and self.random.random() < 0.3:
            self.peer.send(commands.Remove(self.world.scope, (some[0],)))
        elif kind == "child" and self.open:
            self.peer.send(commands.PutEnd((self.open.pop(),), (7,), (1,)))

    def learn(self) -> None:
        """Which leases were granted meanwhile."""
        for item in list(self.unknown):
            reply = self.peer.reply(item[0])
            if isinstance(reply, Located):
                self.unknown.remove(item)
                held = [key for key, info in zip(item[1], reply.objects, strict=True) if isinstance(info, ObjectInfo)]
                if reply.lease is not None:
                    self.leases.append((reply.lease, held))
                    self.leased += Counter(held)

    def release_all(self) -> None:
        for lease, _ in self.leases:
            self.peer.send(commands.Release((lease,)))
        self.peer.send(commands.SetPin(self.world.scope, tuple(self.keys), Pin.NONE))
        for put_id in self.open:
            self.peer.send(commands.PutRevoke((put_id,)))
        self.leased.clear()
        self.pinned.clear()


@pytest.mark.parametrize("policy", ["lru", "fifo"])
@pytest.mark.parametrize("seed", range(12))
def test_p6_holds_whatever_comes_between_the_slices_of_a_search(new_world: Any, seed: int, policy: str) -> None:
    """From the facts: nothing protected goes, no child is left behind, and all that went made the room asked for."""
    world = new_world(slice_objects=(1, 3, 10, 40)[seed % 4], policy=policy)
    world.node("n", 64 * 46)
    client, keys = world.client(), names(40)
    client.chain(*keys[:12])
    client.chain(*keys[12:20])
    for key in keys[20:]:
        client.put(key)
    meddler = Meddler(world, keys, seed)
    parents = {key: parent for chain in (keys[:12], keys[12:20]) for parent, key in pairwise(chain)}
    parents |= meddler.parent_of
    resident = {key for key, flag in zip(keys, client.exists(*keys), strict=True) if flag}
    seen, blocks = len(world.facts), 10 + seed % 5
    request = start(client, b"big", 64 * blocks, wait_ms=60_000)

    def check() -> None:
        nonlocal seen
        for fact in world.facts[seen:]:
            if isinstance(fact, ObjectRemoved):
                resident.discard(fact.hash)
                if fact.reason == "evicted":
                    assert not meddler.leased[fact.hash] and fact.hash not in meddler.pinned and not fact.lingering
                    assert not [key for key in resident if parents.get(key) == fact.hash], "an orphan was made"
        seen = len(world.facts)
        committed = {fact.put_id for fact in world.facts_of(ObjectCommitted)}
        opened = [fact for fact in world.facts_of(PutOpened) if fact.put_id in committed]
        removed = {fact.put_id for fact in world.facts_of(ObjectRemoved)}
        resident.update(fact.hash for fact in opened if fact.put_id not in removed)
        meddler.learn()

    for _ in range(400):
        check()
        meddler.act()
        check()
        world.step(Tick())
        if world.facts_of(PutOpened)[-1].hash == b"big":
            break
    if world.facts_of(PutOpened)[-1].hash != b"big":
        assert not evicted(world), "evicted for nothing"
        check()
        meddler.release_all()
        steps(world)
    check()
    entry = entry_of(client, request)
    assert isinstance(client.wait(entry.ticket)[0] if isinstance(entry, Pending) else entry, PutGrant)
    assert len(evicted(world)) <= blocks + len(keys), "nothing went twice"


@pytest.mark.parametrize("at", range(0, 60, 4))
def test_p8_a_node_that_dies_while_room_is_made_on_it_takes_nobody_else_along(new_world: Any, at: int) -> None:
    world = new_world(slice_objects=8)
    first, _ = world.node("n1", 64 * 20), world.node("n2", 64 * 20)
    client, keys = world.client(), names(40)
    for key in keys:
        client.put(key, preferred_node="n1" if key < keys[20] else "n2")
    lease = client.lease(*keys[20:])
    request = start(client, b"big", 64 * 20)
    for _ in range(at):
        if world.core.next_deadline() == world.now:
            world.step(Tick())
    segment = world.core._context.state.segments.of_session(first.id)[0].id
    first.send(commands.Unmount(segment))
    assert world.facts_of(SegmentGoing)
    steps(world)
    assert client.exists(*keys[20:]) == [1] * 20, "leased blocks on the other node"
    client.release(lease)
    steps(world)
    entry = entry_of(client, request)
    entry = client.wait(entry.ticket)[0] if isinstance(entry, Pending) else entry
    assert isinstance(entry, PutGrant) or error_of(entry).kind == "SegmentGone"


@pytest.mark.parametrize("suspect", [True, False])
def test_p6_a_search_begins_anew_when_the_segments_are_others(new_world: Any, suspect: bool) -> None:
    world, client, keys = full_world(new_world, 40, 8)
    pinned = world.node("pinned", 64 * 40)
    client.put(*names(40, b"p"), pin=Pin.HARD, preferred_node="pinned")
    request = start(client, b"big", 64 * 40)
    for _ in range(4):
        world.step(Tick())
    assert world.core._context.waiting.is_placing() and pinned.is_alive()
    if suspect:
        node = next(peer for peer in world.peers.values() if peer.name == "n")
        node.disconnect()
        steps(world)
        assert not evicted(world)
        world.hello("n", "node", node.incarnation)
        steps(world)
    else:
        world.node("n2", 64 * 40)
        steps(world)
        assert not evicted(world), "there is room without that"
    assert isinstance(client.wait(entry_of(client, request).ticket)[0], PutGrant)
    assert len(evicted(world)) == (40 if suspect else 0) and len(keys) == 40


def test_stat_describes_a_part_of_a_large_batch_in_each_step(new_world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world, client, keys = full_world(new_world, 300, 200)
    described, original = [0], lookup._describe

    def describe(*arguments: Any) -> Any:
        described[-1] += 1
        return original(*arguments)

    monkeypatch.setattr(lookup, "_describe", describe)
    request = client.send(commands.Stat(world.scope, (*keys, b"x")))
    steps(world, lambda: described.append(0))
    assert max(described) <= 200 // lookup.DESCRIBE_UNITS + lookup.DESCRIBE_ROWS
    reply = client.reply(request)
    assert isinstance(reply, Stats) and len(reply.objects) == 301
    assert all(isinstance(stat, ObjectStat) for stat in reply.objects[:-1])
    assert isinstance(error_of(reply.objects[-1]), KeyNotFound)


def test_a_match_in_slices_holds_what_it_counts_also_if_some_of_it_went_meanwhile(
    new_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "LOOKUP_ROWS", 4)
    world, client, keys = full_world(new_world, 40, 1)
    request = client.send(commands.MatchPrefix(tuple(keys), (world.scope,), hold=True))
    world.step(Tick())
    world.step(Tick())
    client.send(commands.Remove(world.scope, (keys[22],)))
    steps(world)
    matched = client.reply(request)
    assert isinstance(matched, Matched) and matched.count == 22 and matched.lease is not None
    stats = client.ask(commands.Stat(world.scope, (*keys[:22], *keys[23:])), Stats).objects
    assert [stat.leases for stat in stats if isinstance(stat, ObjectStat)] == [1] * 22 + [0] * 17
    client.release(matched.lease)


def test_a_lookup_that_may_not_hold_so_much_holds_nothing(new_world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "LOOKUP_ROWS", 4)
    world, client, keys = full_world(new_world, 40, 1, max_leased_ratio_per_session=0.5)
    for command in (
        commands.MatchPrefix(tuple(keys), (world.scope,), hold=True),
        commands.GetReplicas(world.scope, tuple(keys)),
    ):
        with pytest.raises(PoolError, match="max_leased_ratio_per_session"):
            client.ask(command, object)
        steps(world)
        assert not world.core._context.leases.by_id and not world.core._context.leases.covered


def test_a_large_lease_ends_bit_by_bit_and_protects_what_it_still_covers(new_world: Any) -> None:
    world, client, keys = full_world(new_world, 200, 20)
    lease = client.lease(*keys)
    request = client.send(commands.Release((lease,)))
    assert isinstance(client.reply(request), Done)
    covered = [world.core._context.leases.covered]
    steps(world, lambda: covered.append(world.core._context.leases.covered))
    assert 0 < covered[0] < 200 and world.core._context.leases.covered == 0
    assert max(before - after for before, after in pairwise(covered)) <= 2 * 64
    assert isinstance(outcome(client, b"x"), PutGrant)
    assert evicted(world) == keys[:1]


def test_a_lease_ends_whole_although_its_session_ends_meanwhile(new_world: Any) -> None:
    world, client, keys = full_world(new_world, 200, 50)
    other = world.client("other")
    lease = other.lease(*keys)
    other.send(commands.Release((lease,)))
    other.send(commands.Goodbye())
    steps(world)
    assert world.core._context.leases.covered == 0 and client.exists(*keys) == [1] * 200


def test_pages_of_a_rare_pattern_are_looked_for_in_slices(new_world: Any) -> None:
    world, client, _ = full_world(new_world, 300, 100)
    request = client.send(commands.ListKeys(pattern="nothing*"))
    assert client.reply(request) is None
    steps(world)
    page = client.reply(request)
    assert page is not None and (page.keys, page.next_cursor) == ((), 200)  # type: ignore[union-attr]


def test_put_started_is_one_reply_also_if_its_keys_take_many_steps(new_world: Any) -> None:
    world, client, _ = full_world(new_world, 60, 40)
    request = client.send(commands.PutStart(world.scope, (b"a", b"b"), (64 * 20, 64 * 20), wait_ms=0))
    steps(world)
    reply = client.reply(request)
    assert isinstance(reply, PutStarted) and [type(entry) for entry in reply.entries] == [PutGrant, PutGrant]
    assert len(client.replies[request]) == 1
