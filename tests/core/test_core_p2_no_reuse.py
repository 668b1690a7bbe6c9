"""P2: an extent is not given out while it is leased, or while anything may still land in it. P3 (conservation) holds
after every step of every test here: `World` validates."""

from __future__ import annotations

from typing import Any

import pytest

from pykvpool.errors import LeaseExpired, LimitExceeded, NotOwner, Overloaded, PoolFull, StalePut, TransferFailed
from pykvpool.model import commands
from pykvpool.model.facts import ExtentsFreed, PutClosed, QuarantineEnded
from pykvpool.model.instructions import Fence
from pykvpool.model.replies import Matched
from tests.core.driver import World, error_of


def is_full(client: Any, size: int = 64) -> bool:
    """Would one more object of this size find no room?"""
    entry = client.put_start(b"probe", size=size, wait_ms=0)[0]
    if hasattr(entry, "put_id"):
        client.put_revoke(entry.put_id)
        return False
    assert isinstance(error_of(entry), PoolFull)
    return True


def test_p2_a_leased_object_is_never_evicted_and_goes_when_released(world: World) -> None:
    world.node("n", 128)
    client = world.client()
    client.put(b"a", b"b")
    lease = client.lease(b"a", b"b")
    assert is_full(client)
    assert client.exists(b"a", b"b") == [1, 1]
    client.release(lease)
    client.release(lease)
    assert not is_full(client)


def test_p2_a_removed_object_lingers_until_the_last_lease_ends(world: World) -> None:
    world.node("n", 64)
    client, reader = world.client(), world.client("reader")
    client.put(b"a")
    first, second = client.lease(b"a"), reader.lease(b"a")
    client.remove(b"a", force=True)
    assert client.exists(b"a") == [0]
    client.release(first)
    assert is_full(client)
    reader.release(second)
    assert world.facts_of(ExtentsFreed)
    assert not is_full(client)


def test_p2_a_lease_protects_exactly_until_it_lapses(world: World) -> None:
    world.node("n", 64)
    client = world.client()
    client.put(b"a")
    client.lease(b"a", lease_ms=5_000)
    world.advance(4_999)
    assert is_full(client)
    world.advance(1)
    assert not is_full(client)


def test_p2_a_held_prefix_is_protected_like_any_leased_object(world: World) -> None:
    world.node("n", 192)
    client = world.client()
    client.chain(b"a", b"b", b"c")
    matched = client.ask(commands.MatchPrefix((b"a", b"b", b"x"), (world.scope,), hold=True), Matched)
    assert (matched.count, matched.lease_ms) == (2, world.config.lease_ms)
    assert not is_full(client)  # c is no part of the prefix and went
    assert client.exists(b"a", b"b", b"c") == [1, 1, 0]
    client.put(b"d")
    assert is_full(client, 128)


def test_p2_renewing_a_lapsed_lease_fails_and_revives_nothing(world: World) -> None:
    world.node("n", 128)
    client, other = world.client(), world.client("other")
    client.put(b"a")
    lease = client.lease(b"a", lease_ms=2_000)
    with pytest.raises(NotOwner):
        other.fine(commands.Renew((lease,)))
    world.advance(1_500)
    client.fine(commands.Renew((lease,), 2_000))
    world.advance(1_999)
    client.fine(commands.Renew((lease,), 2_000))
    world.now += 2_000  # nobody stepped at the deadline: it has passed all the same
    with pytest.raises(LeaseExpired):
        client.fine(commands.Renew((lease,), 2_000))


def test_p2_a_renewal_gives_all_that_was_asked_or_nothing(new_world: Any) -> None:
    world = new_world(max_lease_lifetime_ms=20_000, max_lease_ms=9_000)
    world.node("n", 128)
    client = world.client()
    client.put(b"a")
    lease = client.lease(b"a", lease_ms=8_000)
    with pytest.raises(LimitExceeded, match="max_lease_ms"):
        client.fine(commands.Renew((lease,), 9_001))
    world.advance(7_000)
    client.fine(commands.Renew((lease,), 9_000))
    world.advance(7_000)
    with pytest.raises(LeaseExpired, match="max_lease_lifetime_ms"):
        client.fine(commands.Renew((lease,), 9_000))
    client.fine(commands.Renew((lease,), 6_000))


def test_p2_what_one_session_leases_is_capped_in_number_and_bytes(new_world: Any) -> None:
    world = new_world(max_leases_per_session=2, max_leased_ratio_per_session=0.5)
    world.node("n", 256)
    client, other = world.client(), world.client("other")
    client.put(b"a", b"b", b"c")
    with pytest.raises(Overloaded, match="max_leased_ratio_per_session"):
        client.lease(b"a", b"b", b"c")
    lease = client.lease(b"a")
    client.lease(b"a")
    with pytest.raises(Overloaded, match="max_leases_per_session"):
        client.lease(b"b")
    other.lease(b"b")
    client.release(lease)
    client.lease(b"b")


def test_a_session_may_read_the_same_objects_as_often_as_it_likes_unless_its_leases_are_bounded(world: World) -> None:
    world.node("n", 128)
    client = world.client()
    client.put(b"a", b"b")
    for _ in range(3):
        client.lease(b"a", b"b")
    assert is_full(client)


@pytest.mark.parametrize("lost", ["expired", "superseded"])
def test_p2_a_reader_that_cannot_hear_us_keeps_its_leases_for_their_time(world: World, lost: str) -> None:
    node = world.node("n", 64)
    client, reader = world.client(), world.client("reader")
    client.put(b"a")
    reader.lease(b"a", lease_ms=20_000)
    if lost == "expired":
        reader.disconnect()
    else:
        world.client("reader")
    world.idle(19_999, client, node)
    assert not reader.is_alive()
    assert is_full(client)
    world.idle(1, client, node)
    assert not is_full(client)


def test_p2_leases_end_with_the_goodbye_of_their_session(world: World) -> None:
    world.node("n", 64)
    client, reader = world.client(), world.client("reader")
    client.put(b"a")
    reader.lease(b"a", lease_ms=60_000)
    reader.send(commands.Goodbye())
    world.settle()
    assert not is_full(client)


# -- quarantine ------------------------------------------------------------------------------------------------------


def test_p2_an_uncertain_extent_is_quarantined_until_its_owner_fenced_the_writer(world: World) -> None:
    node = world.node("n", 64)
    client = world.client()
    grant = client.grant(b"a")
    with pytest.raises(TransferFailed):
        client.put_end(grant.put_id, landed=0, uncertain=1)
    (fence,) = node.told(Fence)
    assert (fence.session, fence.name, fence.incarnation, fence.ban) == (client.id, "client", client.incarnation, False)
    world.idle(300_000, client, node)
    assert is_full(client)
    node.fine(commands.Fenced(fence.session, fence.segment, fence.number))
    assert [fact.evidence for fact in world.facts_of(QuarantineEnded)] == ["fenced"]
    assert not is_full(client)


def test_p2_revoking_after_draining_frees_at_once_but_not_what_is_uncertain(world: World) -> None:
    world.node("n", 128)
    client = world.client()
    certain, uncertain = client.put_start(b"a", b"b")
    client.put_revoke(certain.put_id)
    client.put_revoke(uncertain.put_id, uncertain=1)
    assert (world.free_bytes(), world.quarantined_bytes()) == (64, 64)


def test_p2_a_put_out_of_time_waits_for_its_writers_own_word(world: World) -> None:
    node = world.node("n", 64)
    client = world.client()
    grant = client.grant(b"a")
    world.idle(world.config.put_ttl_ms + 1, client, node)
    assert [fact.reason for fact in world.facts_of(PutClosed)] == ["expired"]
    # A live writer that does not know may still begin to write: cutting its connections would prove nothing.
    assert node.told(Fence) == []
    assert is_full(client)
    with pytest.raises(StalePut):
        client.put_end(grant.put_id)
    assert [fact.evidence for fact in world.facts_of(QuarantineEnded)] == ["drained"]
    assert client.exists(b"a") == [0]
    assert not is_full(client)


def test_p2_a_late_put_end_that_is_uncertain_leaves_it_to_the_fence(world: World) -> None:
    node = world.node("n", 64)
    client = world.client()
    grant = client.grant(b"a")
    world.idle(world.config.put_ttl_ms + 1, client, node)
    with pytest.raises(StalePut):
        client.put_end(grant.put_id, landed=0, uncertain=1)
    assert is_full(client)
    (fence,) = node.told(Fence)
    node.fine(commands.Fenced(fence.session, fence.segment, fence.number))
    assert not is_full(client)


def test_p2_the_puts_of_a_dead_writer_wait_for_a_fence_that_bans_it(world: World) -> None:
    node = world.node("n", 64)
    writer, client = world.client("writer"), world.client()
    writer.grant(b"a")
    writer.disconnect()
    world.idle(world.config.reconnect_grace_ms + 1, client, node)
    (fence,) = node.told(Fence)
    assert fence.ban and fence.name == "writer"
    world.idle(600_000, client, node, every_ms=9_000)
    assert is_full(client)
    node.fine(commands.Fenced(fence.session, fence.segment, fence.number))
    assert not is_full(client)


def test_p2_a_fence_covers_only_what_was_quarantined_when_it_was_sent(world: World) -> None:
    node = world.node("n", 128)
    client = world.client()
    first, second = client.put_start(b"a", b"b")
    client.put_revoke(first.put_id, uncertain=1)
    (fence,) = node.told(Fence)
    # The node fences now; afterwards the writer connects anew, fails again, and its second put is quarantined too.
    client.put_revoke(second.put_id, uncertain=1)
    assert node.told(Fence) == []
    node.fine(commands.Fenced(fence.session, fence.segment, fence.number))
    assert [fact.put_id for fact in world.facts_of(QuarantineEnded)] == [first.put_id]
    (again,) = node.told(Fence)
    node.fine(commands.Fenced(again.session, again.segment, again.number))
    assert world.quarantined_bytes() == 0


def test_p2_a_fence_stands_until_it_is_answered_and_is_sent_again_on_reconnect(world: World) -> None:
    node = world.node("n", 128)
    client = world.client()
    node.disconnect()
    client_put = world.core._context.state.puts
    world.hello("n", "node", node.incarnation)
    grant = client.grant(b"a")
    node.disconnect()
    client.put_revoke(grant.put_id, uncertain=1)
    assert node.told(Fence) == []
    for _ in range(2):
        world.hello("n", "node", node.incarnation)
        (fence,) = node.told(Fence)
    node.fine(commands.Fenced(fence.session, fence.segment, fence.number))
    assert not client_put.quarantined
    world.hello("n", "node", node.incarnation)
    assert node.told(Fence) == []


def test_p2_a_fence_that_was_lost_with_its_connection_is_settled_by_the_answer_to_the_next(world: World) -> None:
    node = world.node("n", 256)
    client = world.client()
    first, second, third = client.put_start(b"a", b"b", b"c")
    client.put_revoke(first.put_id, uncertain=1)
    assert node.told(Fence)
    # The connection breaks and the fence with it; what is quarantined meanwhile goes into the next.
    node.disconnect()
    client.put_revoke(second.put_id, uncertain=1)
    world.hello("n", "node", node.incarnation)
    (fence,) = node.told(Fence)
    node.fine(commands.Fenced(fence.session, fence.segment, fence.number))
    assert world.quarantined_bytes() == 0
    client.put_revoke(third.put_id, uncertain=1)
    (fence,) = node.told(Fence)
    node.fine(commands.Fenced(fence.session, fence.segment, fence.number))
    assert world.quarantined_bytes() == 0


def test_p2_a_late_answer_to_an_earlier_fence_covers_no_more_than_that(world: World) -> None:
    node = world.node("n", 128)
    client = world.client()
    first, second = client.put_start(b"a", b"b")
    client.put_revoke(first.put_id, uncertain=1)
    (early,) = node.told(Fence)
    node.disconnect()
    client.put_revoke(second.put_id, uncertain=1)
    world.hello("n", "node", node.incarnation)
    (late,) = node.told(Fence)
    node.fine(commands.Fenced(early.session, early.segment, early.number))
    assert [fact.put_id for fact in world.facts_of(QuarantineEnded)] == [first.put_id]
    node.fine(commands.Fenced(late.session, late.segment, late.number))
    assert world.quarantined_bytes() == 0


def test_p2_the_word_of_a_node_counts_for_its_own_segments_only(world: World) -> None:
    node, other = world.node("n", 64), world.node("m")
    client = world.client()
    client.put_revoke(client.grant(b"a").put_id, uncertain=1)
    (fence,) = node.told(Fence)
    with pytest.raises(NotOwner):
        other.fine(commands.Fenced(fence.session, fence.segment, fence.number))
    assert world.quarantined_bytes() == 64


def test_p2_leaving_in_order_needs_no_quarantine_but_for_what_was_named_uncertain(world: World) -> None:
    """The writer closed its connections, but what it had sent may be on the wire, or in its owner's buffers."""
    node = world.node("n", 128)
    client = world.client()
    first, _ = client.put_start(b"a", b"b")
    client.put_revoke(first.put_id, uncertain=1)
    client.fine(commands.Goodbye())
    world.settle()
    assert (world.free_bytes(), world.quarantined_bytes()) == (64, 64)
    fence = node.told(Fence)[-1]
    assert fence.ban
    node.fine(commands.Fenced(fence.session, fence.segment, fence.number))
    assert (world.free_bytes(), world.quarantined_bytes()) == (128, 0)


def test_p2_a_grant_nobody_collected_can_be_taken_back_without_quarantine(world: World) -> None:
    node = world.node("n", 64)
    client, other = world.client(), world.client("other")
    lease_holder = client.put(b"a") and client.lease(b"a")
    pending = other.pending(b"b")
    client.release(lease_holder)
    assert world.free_bytes() == 0
    world.idle(world.config.put_ttl_ms + 1, client, other, node)
    assert (world.free_bytes(), world.quarantined_bytes()) == (64, 0)
    assert isinstance(error_of(other.wait(pending.ticket)[0]), StalePut)


def test_p2_another_sessions_word_is_no_evidence(world: World) -> None:
    world.node("n", 64)
    client, mallory = world.client(), world.client("mallory")
    grant = client.grant(b"a")
    client.put_revoke(grant.put_id, uncertain=1)
    for end in (mallory.put_end, mallory.put_revoke):
        with pytest.raises(NotOwner):
            end(grant.put_id)
    assert world.quarantined_bytes() == 64


def test_p2_a_grant_nobody_was_told_of_needs_no_quarantine_when_its_session_ends(world: World) -> None:
    node = world.node("n", 64)
    client, other = world.client(), world.client("other")
    client.put(b"a")
    lease = client.lease(b"a")
    other.pending(b"b")
    client.release(lease)
    other.disconnect()
    world.idle(world.config.reconnect_grace_ms, node, client)
    assert (world.free_bytes(), world.quarantined_bytes()) == (64, 0)
