"""P5, as far as the master carries it: a mount is one generation, and from the moment it goes no reply names it."""

from __future__ import annotations

from typing import Any

import pytest

from pykvpool.errors import InvalidArgument, KeyNotFound, SegmentGone, StalePut
from pykvpool.model import commands
from pykvpool.model.events import Tick
from pykvpool.model.facts import PutClosed, SegmentGoing, SegmentRemoved
from pykvpool.model.instructions import DropSegment
from pykvpool.model.objects import ObjectInfo
from pykvpool.model.replies import KeyPage, Located, Matched, PutGrant
from tests.core.driver import World, error_of


def test_p5_a_remount_is_another_segment(world: World) -> None:
    node = world.node("n")
    first = node.mount(640)
    node.fine(commands.Unmount(first))
    second = node.mount(640)
    assert second > first
    with pytest.raises(SegmentGone):
        node.fine(commands.Unmount(first))
    assert node.told(DropSegment) == [DropSegment(first)]


def test_p5_a_generation_is_mounted_once(world: World) -> None:
    node = world.node("n")
    node.mount(640, generation=5)
    with pytest.raises(InvalidArgument, match="generation"):
        node.mount(640, generation=5)


def test_p5_no_reply_names_a_segment_that_is_going(new_world: Any) -> None:
    world = new_world(slice_objects=1)
    node = world.node("n", 640)
    client = world.client()
    client.chain(b"a", b"b", b"c")
    grant = client.grant(b"open")
    segment = grant.extents[0].segment
    node.send(commands.Unmount(segment))
    assert world.facts_of(SegmentGoing) and not world.facts_of(SegmentRemoved)
    assert world.core._context.state.catalog.count > 0, "the walk has only begun"
    # One step each: the walk is not over when these are answered.
    exists = client.send(commands.Exists(world.scope, (b"c", b"b", b"a")))
    assert client.reply(exists).flags == b"\0\0\0"
    match = client.send(commands.MatchPrefix((b"a", b"b"), (world.scope,), hold=True))
    assert client.reply(match) == Matched(0)
    listed = client.send(commands.ListKeys())
    assert isinstance(client.reply(listed), KeyPage) and client.reply(listed).keys == ()
    located = client.locate(b"c")
    assert isinstance(error_of(located.objects[0]), KeyNotFound)
    assert (located.lease, located.segments) == (None, ())
    world.settle()
    assert world.facts_of(SegmentRemoved)
    assert [fact.reason for fact in world.facts_of(PutClosed)] == ["segment lost"]
    with pytest.raises(StalePut):
        client.put_end(grant.put_id)


def test_p5_a_key_whose_only_copy_is_going_can_be_written_anew_at_once(new_world: Any) -> None:
    world = new_world(slice_objects=1)
    node = world.node("n1", 640)
    client = world.client()
    client.put(*[bytes([letter]) for letter in b"abcdefgh"])
    world.node("n2", 640)
    node.send(commands.Unmount(world.core._context.state.segments.of_session(node.id)[0].id))
    assert world.core._context.state.catalog.count > 0
    for key in (b"a", b"b", b"h"):
        (grant,) = client.put(key)
        assert world.core._context.state.is_alive(grant.extents[0].segment)
    world.settle()
    assert client.exists(b"a", b"b", b"h", b"c") == [1, 1, 1, 0]


def test_p5_an_object_with_a_copy_elsewhere_is_read_from_there(new_world: Any) -> None:
    world = new_world(slice_objects=1)
    node = world.node("n1", 640)
    world.node("n2", 640)
    client = world.client()
    client.put(b"a", b"b", b"c", replicas=2)
    lost = world.core._context.state.segments.of_session(node.id)[0].id
    node.send(commands.Unmount(lost))
    info = client.locate(b"a").objects[0]
    assert isinstance(info, ObjectInfo) and [extent.segment == lost for extent in info.extents] == [False]


def test_p5_a_segment_that_goes_while_a_batch_is_looked_up_is_not_named_any_more(new_world: Any) -> None:
    world = new_world(slice_objects=1)
    node = world.node("n1", 640)
    world.node("n2", 640)
    client = world.client()
    keys = (b"a", b"b", b"c", b"d")
    for key in keys:
        client.put(key, replicas=2)
    lost = world.core._context.state.segments.of_session(node.id)[0].id
    request = client.send(commands.GetReplicas(world.scope, keys))
    for _ in range(2):
        world.step(Tick())
    assert client.reply(request) is None, "it is under way"
    node.send(commands.Unmount(lost))
    world.settle(lambda: client.reply(request) is not None)
    reply = client.reply(request)
    assert isinstance(reply, Located)
    assert [len(info.extents) for info in reply.objects if isinstance(info, ObjectInfo)] == [1] * 4
    assert lost not in {extent.segment for info in reply.objects for extent in info.extents}
    assert lost not in {segment.segment for segment in reply.segments}
    client.release(reply.lease)
    world.settle()


def test_p5_a_grant_whose_segment_went_before_it_was_told_is_taken_back(world: World) -> None:
    node = world.node("n", 64)
    client = world.client()
    client.put(b"a")
    lease = client.lease(b"a")
    pending = client.pending(b"b")
    client.release(lease)
    other = world.node("m", 64)
    segment = world.core._context.state.segments.of_session(node.id)[0].id
    request = node.send(commands.Unmount(segment))
    assert node.reply(request) is not None
    entry = client.wait(pending.ticket)[0]
    assert error_of(entry).kind in ("SegmentGone", "StalePut")
    assert isinstance(client.put_start(b"b")[0], PutGrant)
    assert other.name == "m"


def test_p5_a_put_goes_on_with_the_replicas_that_are_left(world: World) -> None:
    node = world.node("n1", 640)
    world.node("n2", 640)
    client = world.client()
    grant = client.grant(b"a", replicas=2)
    lost = world.core._context.state.segments.of_session(node.id)[0].id
    node.fine(commands.Unmount(lost))
    world.settle()
    client.put_end(grant.put_id, landed=0b11)
    info = client.locate(b"a").objects[0]
    assert [extent.segment == lost for extent in info.extents] == [False]


def test_p5_what_was_quarantined_ends_with_the_generation(world: World) -> None:
    node = world.node("n", 640)
    client = world.client()
    client.put_revoke(client.grant(b"a").put_id, uncertain=1)
    node.fine(commands.Unmount(world.core._context.state.segments.of_session(node.id)[0].id))
    world.settle()
    assert not world.core._context.state.puts.quarantined
    with pytest.raises(StalePut):
        client.put_end(world.core._context.state.puts.last_id)
