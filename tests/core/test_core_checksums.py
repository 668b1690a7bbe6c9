"""Objects committed unsummed: the owner hashes its own copy when asked; its answer counts for that object only."""

from __future__ import annotations

from pykvpool.model import commands
from pykvpool.model.facts import ChecksumSet
from pykvpool.model.instructions import HashExtents
from tests.core.driver import World


def test_the_owner_is_asked_and_its_checksum_is_told_to_readers(world: World) -> None:
    node = world.node("n", 640)
    client = world.client()
    first, second = client.put_start(b"a", b"b")
    client.fine(commands.PutEnd((first.put_id, second.put_id), (None, 5), (1, 1)))
    (request,) = node.told(HashExtents)
    assert (request.puts, request.extents) == ((first.put_id,), first.extents)
    assert [info.checksum for info in client.locate(b"a", b"b").objects] == [None, 5]
    node.fine(commands.Hashed(request.segment, (first.put_id, second.put_id), (99, 98)))
    assert [info.checksum for info in client.locate(b"a", b"b").objects] == [99, 5]
    node.fine(commands.Hashed(request.segment, (first.put_id,), (97,)))
    assert world.facts_of(ChecksumSet) == [ChecksumSet(first.put_id, 99)]


def test_an_answer_for_an_object_that_is_gone_is_void(world: World) -> None:
    node = world.node("n", 640)
    client = world.client()
    (old,) = client.put_start(b"a")
    client.put_end(old.put_id, checksum=None)
    (request,) = node.told(HashExtents)
    client.remove(b"a")
    client.put(b"a")
    node.fine(commands.Hashed(request.segment, request.puts, (99,)))
    assert not world.facts_of(ChecksumSet)


def test_a_node_that_comes_back_is_asked_again_for_what_is_left(world: World) -> None:
    node = world.node("n", 640)
    client = world.client()
    grants = client.put_start(b"a", b"b", b"c")
    node.disconnect()
    client.fine(commands.PutEnd(tuple(grant.put_id for grant in grants), (None,) * 3, (1,) * 3))
    assert not node.told(HashExtents)
    client.remove(b"b")
    world.hello("n", "node", node.incarnation)
    (request,) = node.told(HashExtents)
    assert request.puts == (grants[0].put_id, grants[2].put_id)
    node.fine(commands.Hashed(request.segment, request.puts[:1], (1,)))
    world.hello("n", "node", node.incarnation)
    (request,) = node.told(HashExtents)
    assert request.puts == (grants[2].put_id,)
