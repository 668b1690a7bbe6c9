"""P8: losing a node loses the replicas it held and nothing else; the rest is served throughout."""

from __future__ import annotations

from typing import Any

import pytest

from pykvpool.model import commands
from pykvpool.model.events import Tick
from pykvpool.model.facts import ObjectRemoved, ReplicaLost, SegmentGoing, SegmentRemoved, SessionEnded
from pykvpool.model.instructions import SessionOver
from pykvpool.model.replies import Flags, State, Stats
from tests.core.driver import Peer, World

KEYS = tuple(b"%03d" % number for number in range(40))


def two_nodes(world: World) -> tuple[Peer, Peer, Peer]:
    return world.node("n1", 6400), world.node("n2", 6400), world.client()


def test_p8_only_what_the_dead_node_held_alone_is_lost(world: World) -> None:
    dead, alive, client = two_nodes(world)
    client.put(*KEYS[:10], preferred_node="n1")
    client.put(*KEYS[10:20], preferred_node="n2")
    client.put(*KEYS[20:30], replicas=2)
    dead.disconnect()
    world.idle(world.config.reconnect_grace_ms, alive, client)
    assert client.exists(*KEYS[:30]) == [0] * 10 + [1] * 20
    assert {fact.hash for fact in world.facts_of(ObjectRemoved)} == set(KEYS[:10])
    assert {fact.reason for fact in world.facts_of(ObjectRemoved)} == {"replicas lost"}
    assert {fact.hash for fact in world.facts_of(ReplicaLost)} == set(KEYS[20:30])
    assert [type(fact) for fact in world.facts if isinstance(fact, SegmentGoing | SegmentRemoved)] == [
        SegmentGoing,
        SegmentRemoved,
    ]
    assert all(len(info.extents) == 1 for info in client.locate(*KEYS[10:30]).objects)


def test_p8_a_silent_node_is_suspect_first_and_nothing_is_lost_if_it_comes_back(world: World) -> None:
    node, other, client = two_nodes(world)
    client.put(b"a", replicas=2)
    client.put(b"only", preferred_node="n1")
    node.disconnect()
    segments = world.core._context.state.segments.by_id
    located = client.locate(b"a", b"only")
    # Still served: the copy of the node that is there comes first, an only copy is not held back.
    assert [segments[extent.segment].node for extent in located.objects[0].extents] == ["n2", "n1"]
    assert len(located.objects[1].extents) == 1
    # Nothing new is placed there, wished or not.
    grant = client.grant(b"b", preferred_node="n1", replicas=2)
    assert [segments[extent.segment].node for extent in grant.extents] == ["n2"]
    assert [segment.suspect for segment in client.ask(commands.ClusterState(), State).segments] == [True, False]
    world.idle(world.config.reconnect_grace_ms - 1, other, client)
    assert world.hello("n1", "node", node.incarnation).resumed
    world.idle(world.config.session_ttl_ms - 1, other, client)
    assert client.exists(b"a", b"only") == [1, 1]
    assert [segment.suspect for segment in client.ask(commands.ClusterState(), State).segments] == [False, False]


def test_p8_a_node_that_says_nothing_for_its_ttl_is_gone(world: World) -> None:
    node, other, client = two_nodes(world)
    client.put(b"a", preferred_node="n1")
    world.idle(world.config.session_ttl_ms - 1, other, client)
    assert client.exists(b"a") == [1]
    world.idle(1, other, client)
    assert client.exists(b"a") == [0]
    assert [fact.reason for fact in world.facts_of(SessionEnded)] == ["expired"]
    assert len(node.told(SessionOver)) == 1


def test_p8_a_new_incarnation_takes_the_name_and_the_old_segments_go(world: World) -> None:
    old, _, client = two_nodes(world)
    client.put(b"a", preferred_node="n1")
    new = world.node("n1", 640)
    world.settle()
    assert len(old.told(SessionOver)) == 1
    assert client.exists(b"a") == [0]
    assert [segment.session for segment in world.core._context.state.segments.by_id.values()][-1] == new.id


@pytest.mark.parametrize("slice_objects", [1, 50, 2_000])
def test_p8_a_loss_goes_in_slices_and_the_rest_is_served_between_them(new_world: Any, slice_objects: int) -> None:
    world = new_world(slice_objects=slice_objects)
    dead, _, client = two_nodes(world)
    client.put(*KEYS[:30], preferred_node="n1")
    client.put(*KEYS[30:], preferred_node="n2")
    dead.send(commands.Unmount(world.core._context.state.segments.of_session(dead.id)[0].id))
    steps = 0
    while world.core.next_deadline() == world.now:
        reply = client.reply(client.send(commands.Exists(world.scope, KEYS)))
        assert isinstance(reply, Flags) and list(reply.flags) == [0] * 30 + [1] * 10
        before = len(world.facts_of(ObjectRemoved))
        world.step(Tick())
        assert len(world.facts_of(ObjectRemoved)) - before <= slice_objects // 10 + 1
        steps += 1
    assert steps >= 30 // (slice_objects // 10 + 1) // 2
    assert len(world.facts_of(ObjectRemoved)) == 30


def test_p8_a_chain_loses_only_its_lost_blocks_and_orphans_stay_readable(world: World) -> None:
    dead, alive, client = two_nodes(world)
    for key, parent, node in ((b"a", None, "n2"), (b"b", b"a", "n1"), (b"c", b"b", "n2"), (b"d", b"c", "n2")):
        client.put(key, parents=(parent,), preferred_node=node)
    dead.disconnect()
    world.idle(world.config.reconnect_grace_ms, alive, client)
    assert client.exists(b"a", b"b", b"c", b"d") == [1, 0, 1, 1]
    stats = client.ask(commands.Stat(world.scope, (b"a", b"c", b"d")), Stats).objects
    assert [stat.orphan for stat in stats] == [False, True, False]
    client.put(b"b", parents=(b"a",))
    stats = client.ask(commands.Stat(world.scope, (b"b", b"c")), Stats).objects
    assert [(stat.orphan, stat.depth) for stat in stats] == [(False, 1), (False, 2)]


def test_p8_orphans_left_by_a_dead_node_go_before_older_blocks(world: World) -> None:
    dead, alive = world.node("n1", 64), world.node("n2", 64 * 4)
    client = world.client()
    client.put(b"old1", b"old2", preferred_node="n2")
    client.put(b"root", preferred_node="n1")
    client.put(b"c1", parents=(b"root",), preferred_node="n2")
    client.put(b"c2", parents=(b"c1",), preferred_node="n2")
    dead.disconnect()
    world.idle(world.config.reconnect_grace_ms, alive, client)
    client.put(b"x", b"y", b"z")
    removed = [fact.hash for fact in world.facts_of(ObjectRemoved) if fact.reason == "evicted"]
    assert removed == [b"c2", b"c1", b"old1"]


def test_p8_a_leased_object_on_a_lost_node_ends_quietly(world: World) -> None:
    dead, alive, client = two_nodes(world)
    client.put(b"a", preferred_node="n1")
    client.put(b"b", replicas=2)
    lease = client.lease(b"a", b"b")
    dead.disconnect()
    world.idle(world.config.reconnect_grace_ms, alive, client)
    assert client.exists(b"a", b"b") == [0, 1]
    client.release(lease)
    assert world.core._context.state.lingering == 0


def test_p8_a_node_that_leaves_in_order_is_gone_at_once(world: World) -> None:
    node, _, client = two_nodes(world)
    client.put(b"a", preferred_node="n1")
    client.put(b"b", preferred_node="n2")
    node.fine(commands.Goodbye())
    world.settle()
    assert client.exists(b"a", b"b") == [0, 1]
    assert node.told(SessionOver) == []
