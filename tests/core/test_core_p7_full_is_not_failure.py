"""P7: a full pool evicts, then writers wait, in order and for a bounded time; nothing is dropped silently."""

from __future__ import annotations

from typing import Any

import pytest

from pykvpool.errors import InvalidArgument, NotReady, PoolFull, StalePut, TooFewNodes
from pykvpool.model import commands
from pykvpool.model.objects import Pin
from pykvpool.model.replies import Existing, Pending, PutGrant
from tests.core.driver import World, error_of


def test_p7_a_waiter_gets_room_the_moment_a_lease_ends(world: World) -> None:
    world.node("n", 64)
    client, writer = world.client(), world.client("writer")
    client.put(b"a")
    lease = client.lease(b"a")
    pending = writer.pending(b"b")
    assert not pending.in_progress
    request = writer.send_wait(pending.ticket)
    assert writer.entries(request) is None
    client.release(lease)
    (entry,) = writer.entries(request)
    assert isinstance(entry, PutGrant)
    writer.put_end(entry.put_id)
    assert client.exists(b"a", b"b") == [0, 1]


@pytest.mark.parametrize(
    "event", ["lease lapses", "put revoked", "object removed", "unpinned", "segment mounted", "committed"]
)
def test_p7_whatever_makes_room_wakes_the_head_of_the_queue(world: World, event: str) -> None:
    node = world.node("n", 64)
    client, writer = world.client(), world.client("writer")
    grant = client.grant(b"a")
    if event != "put revoked":
        if event != "committed":
            client.put_end(grant.put_id)
        if event == "lease lapses":
            client.lease(b"a", lease_ms=2_000)
        elif event != "committed":
            client.pin(b"a", Pin.HARD)
    request = writer.send_wait(writer.pending(b"b").ticket)
    assert writer.entries(request) is None
    if event == "lease lapses":
        world.advance(2_000)
    elif event == "put revoked":
        client.put_revoke(grant.put_id)
    elif event == "object removed":
        client.remove(b"a", force=True)
    elif event == "unpinned":
        client.pin(b"a", Pin.NONE)
    elif event == "segment mounted":
        node.mount(64)
    else:
        client.put_end(grant.put_id)
    assert isinstance(writer.entries(request)[0], PutGrant)


def test_p7_nobody_overtakes_the_head_and_freed_bytes_add_up_for_it(world: World) -> None:
    world.node("n", 256)
    client, big, small = world.client(), world.client("big"), world.client("small")
    client.put(b"a", b"b", b"c", b"d")
    leases = [client.lease(key) for key in (b"a", b"b", b"c", b"d")]
    head = big.pending(b"big", size=192)
    second = small.pending(b"small", size=64)
    for lease in leases[:2]:
        client.release(lease)
        assert small.wait(second.ticket) == [second]
        assert isinstance(small.put_start(b"late", size=64, wait_ms=0)[0], object)
        assert isinstance(error_of(small.put_start(b"late", size=64, wait_ms=0)[0]), PoolFull)
    client.release(leases[2])
    assert isinstance(big.wait(head.ticket)[0], PutGrant)
    assert small.wait(second.ticket) == [second]
    client.release(leases[3])
    assert isinstance(small.wait(second.ticket)[0], PutGrant)


def test_p7_a_batch_never_holds_and_waits(world: World) -> None:
    world.node("n", 128)
    client = world.client()
    entries = client.put_start(b"a", b"b", b"c", b"d")
    assert [type(entry) for entry in entries] == [PutGrant, PutGrant, Pending, Pending]
    request = client.send_wait(entries[2].ticket, entries[3].ticket)
    client.put_end(entries[0].put_id)
    (third, fourth) = client.entries(request)
    assert isinstance(third, PutGrant)
    assert fourth == entries[3]
    client.put_end(entries[1].put_id)
    assert isinstance(client.wait(fourth.ticket)[0], PutGrant)


def test_p7_after_its_deadline_a_waiter_gets_a_pool_full_that_says_why(world: World) -> None:
    node = world.node("n", 64)
    client, writer = world.client(), world.client("writer")
    client.put(b"a", pin=Pin.HARD)
    first = writer.pending(b"b", wait_ms=5_000)
    second = writer.pending(b"c", wait_ms=8_000)
    request = writer.send_wait(first.ticket, second.ticket, timeout_ms=60_000)
    world.idle(4_000, node, client, writer)
    assert writer.entries(request) is None
    world.idle(1_000, node, client, writer)
    full, waiting = writer.entries(request)
    assert isinstance(error_of(full), PoolFull) and error_of(full).fields["hard_pinned_bytes"] == 64
    assert waiting == second


def test_p7_put_wait_returns_at_its_timeout_with_what_is_still_pending(world: World) -> None:
    world.node("n", 64)
    client = world.client()
    client.put(b"a", pin=Pin.HARD)
    pending = client.pending(b"b")
    request = client.send_wait(pending.ticket, timeout_ms=700)
    world.advance(699)
    assert client.entries(request) is None
    world.advance(1)
    assert client.entries(request) == [pending]


def test_p7_no_wish_to_wait_means_an_answer_at_once(world: World) -> None:
    world.node("n", 64)
    client = world.client()
    client.put(b"a", pin=Pin.HARD)
    client.grant(b"b") if world.free_bytes() else None
    assert isinstance(error_of(client.put_start(b"c", wait_ms=0)[0]), PoolFull)
    assert world.core._context.waiting.undecided == 0


def test_p7_the_queue_is_bounded(new_world: Any) -> None:
    world = new_world(max_waiting=1)
    world.node("n", 64)
    client = world.client()
    client.put(b"a", pin=Pin.HARD)
    client.pending(b"b")
    error = error_of(client.put_start(b"c")[0])
    assert isinstance(error, PoolFull) and "max_waiting" in error.message


def test_p7_a_timed_out_head_makes_way(world: World) -> None:
    node = world.node("n", 128)
    client = world.client()
    client.put(b"a", pin=Pin.HARD)
    head = client.pending(b"big", size=128, wait_ms=1_000)
    second = client.pending(b"small", size=64)
    world.idle(1_000, node, client)
    assert isinstance(error_of(client.wait(head.ticket)[0]), PoolFull)
    assert isinstance(client.wait(second.ticket)[0], PutGrant)


# -- another writer of the same key ----------------------------------------------------------------------------------


def test_p7_a_second_writer_learns_that_the_first_committed(world: World) -> None:
    world.node("n", 640)
    first, second = world.client("first"), world.client("second")
    grant = first.grant(b"k")
    pending = second.pending(b"k")
    assert pending.in_progress
    request = second.send_wait(pending.ticket)
    first.put_end(grant.put_id)
    assert second.entries(request) == [Existing(grant.put_id)]


@pytest.mark.parametrize("end", ["revoked", "failed", "goodbye", "silent", "out of time"])
def test_p7_a_second_writer_takes_over_when_the_first_ends_without_an_object(world: World, end: str) -> None:
    node = world.node("n", 640)
    first, second, third = world.client("first"), world.client("second"), world.client("third")
    grant = first.grant(b"k")
    request = second.send_wait(second.pending(b"k", wait_ms=200_000).ticket, timeout_ms=200_000)
    follower = third.pending(b"k", wait_ms=200_000)
    if end == "revoked":
        first.put_revoke(grant.put_id)
    elif end == "failed":
        first.send(commands.PutEnd((grant.put_id,), (None,), (0,)))
    elif end == "goodbye":
        first.fine(commands.Goodbye())
        world.settle()
    elif end == "silent":
        first.disconnect()
        world.idle(world.config.reconnect_grace_ms, node, second, third)
    else:
        world.idle(world.config.put_ttl_ms, node, first, second, third)
    (entry,) = second.entries(request)
    assert isinstance(entry, PutGrant) and entry.put_id > grant.put_id
    if end not in ("silent", "out of time"):
        assert world.quarantined_bytes() == 0
    else:
        assert entry.extents != grant.extents
    second.put_end(entry.put_id)
    assert third.wait(follower.ticket) == [Existing(entry.put_id)]


def test_p7_waiting_for_another_writer_is_bounded_too(world: World) -> None:
    node = world.node("n", 640)
    first, second = world.client("first"), world.client("second")
    first.grant(b"k")
    assert isinstance(error_of(second.put_start(b"k", wait_ms=0)[0]), NotReady)
    pending = second.pending(b"k", wait_ms=2_000)
    world.idle(2_000, node, first, second)
    assert isinstance(error_of(second.wait(pending.ticket)[0]), NotReady)


def test_p7_one_who_follows_a_queued_writer_takes_its_turn_when_that_gives_up(world: World) -> None:
    node = world.node("n", 64)
    client, first, second = world.client(), world.client("first"), world.client("second")
    client.put(b"a")
    lease = client.lease(b"a", lease_ms=20_000)
    head = first.pending(b"k", wait_ms=1_000)
    follower = second.pending(b"k", wait_ms=20_000)
    assert (head.in_progress, follower.in_progress) == (False, True)
    world.idle(1_000, node, client, first, second)
    assert isinstance(error_of(first.wait(head.ticket)[0]), PoolFull)
    client.release(lease)
    assert isinstance(second.wait(follower.ticket)[0], PutGrant)


# -- what can never be placed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "word"), [(0, "empty value"), (-1, "size -1"), (129, "largest segment")])
def test_p7_a_size_that_never_fits_is_refused_by_name(world: World, size: int, word: str) -> None:
    world.node("n", 128)
    client = world.client()
    good, bad = client.put_start(b"good", b"bad", size=(64, size))
    assert isinstance(good, PutGrant)
    error = error_of(bad)
    assert isinstance(error, InvalidArgument) and word in error.message


def test_p7_too_few_nodes_is_said_unless_fewer_will_do(world: World) -> None:
    client = world.client()
    assert isinstance(error_of(client.put_start(b"k")[0]), TooFewNodes)
    world.node("n1", 640)
    assert isinstance(error_of(client.put_start(b"k", replicas=3, min_replicas=2)[0]), TooFewNodes)
    assert len(client.grant(b"k", replicas=3).extents) == 1
    world.node("n2", 640, 640)
    assert len(client.grant(b"l", replicas=3, min_replicas=2).extents) == 2


def test_p7_a_wish_for_replicas_does_not_wait_where_fewer_may_start(world: World) -> None:
    world.node("n1", 64)
    world.node("n2", 64)
    client = world.client()
    client.put(b"pinned", pin=Pin.HARD)
    assert len(client.grant(b"k", replicas=2).extents) == 1


def test_p7_tickets_are_their_sessions_own_and_collected_once(world: World) -> None:
    world.node("n", 64)
    client, other = world.client(), world.client("other")
    client.put(b"a")
    lease = client.lease(b"a")
    pending = client.pending(b"b")
    client.release(lease)
    assert isinstance(error_of(other.wait(pending.ticket)[0]), StalePut)
    assert isinstance(client.wait(pending.ticket)[0], PutGrant)
    assert isinstance(error_of(client.wait(pending.ticket)[0]), StalePut)


def test_p7_a_put_may_ask_for_more_grants_than_must_land(world: World) -> None:
    world.node("n1", 640)
    client = world.client()
    assert isinstance(error_of(client.put_start(b"k", replicas=2, min_granted=2)[0]), TooFewNodes)
    world.node("n2", 640)
    grant = client.grant(b"k", replicas=2, min_granted=2)
    client.put_end(grant.put_id, landed=0b01)
    assert client.exists(b"k") == [1]


def test_p7_who_gives_up_leaves_the_queue_and_takes_nothing_with_it(world: World) -> None:
    world.node("n", 128)
    client, first, second = world.client(), world.client("first"), world.client("second")
    client.put(b"a", b"b")
    leases = [client.lease(b"a"), client.lease(b"b")]
    head = first.pending(b"big", size=128)
    follower = second.pending(b"big", size=128)
    behind = client.pending(b"small")
    second.fine(commands.PutForget((head.ticket,)))
    client.release(leases[0])
    assert client.wait(behind.ticket) == [behind], "another session's ticket was not its to forget"
    second.fine(commands.PutForget((follower.ticket,)))
    first.fine(commands.PutForget((head.ticket, head.ticket)))
    assert isinstance(client.wait(behind.ticket)[0], PutGrant)
    assert world.core._context.waiting.undecided == 0


def test_p7_a_grant_made_meanwhile_is_given_back_by_who_gives_up(world: World) -> None:
    world.node("n", 64)
    client, writer = world.client(), world.client("writer")
    client.put(b"a")
    lease = client.lease(b"a")
    ticket = writer.pending(b"b").ticket
    client.release(lease)
    assert world.core._context.state.puts.by_id
    writer.fine(commands.PutForget((ticket,)))
    assert (world.free_bytes(), world.quarantined_bytes()) == (64, 0)
