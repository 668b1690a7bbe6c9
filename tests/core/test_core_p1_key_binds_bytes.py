"""P1: what a reader is given for a key was committed under exactly that key, by the writer that owned the put."""

from __future__ import annotations

import pytest

from pykvpool.errors import InvalidArgument, KeyConflict, KeyNotFound, NotOwner, NotReady, StalePut, TransferFailed
from pykvpool.model import commands
from pykvpool.model.facts import ObjectCommitted
from pykvpool.model.replies import Done, Existing, Pending, PutGrant
from tests.core.driver import World, error_of


def test_p1_another_session_cannot_end_or_revoke_a_put(world: World) -> None:
    world.node("n", 4096)
    alice, mallory = world.client("alice"), world.client("mallory")
    grant = alice.grant(b"k")
    with pytest.raises(NotOwner):
        mallory.put_end(grant.put_id)
    with pytest.raises(NotOwner):
        mallory.put_revoke(grant.put_id)
    assert mallory.exists(b"k") == [0]
    alice.put_end(grant.put_id)
    assert mallory.exists(b"k") == [1]
    with pytest.raises(NotOwner):
        mallory.put_end(grant.put_id)


def test_p1_a_stale_put_id_makes_nothing_readable(world: World) -> None:
    world.node("n", 4096)
    client = world.client()
    old = client.grant(b"k")
    client.put_revoke(old.put_id)
    new = client.grant(b"k")
    assert new.put_id > old.put_id
    with pytest.raises(StalePut):
        client.put_end(old.put_id)
    assert client.exists(b"k") == [0]
    client.put_end(new.put_id)
    located = client.locate(b"k")
    assert located.objects[0].put_id == new.put_id


def test_p1_nothing_is_readable_before_its_writer_said_so(world: World) -> None:
    world.node("n", 4096)
    client = world.client()
    grant = client.grant(b"k")
    assert client.exists(b"k") == [0]
    assert isinstance(error_of(client.locate(b"k", b"other").objects[0]), NotReady)
    assert isinstance(error_of(client.locate(b"other").objects[0]), KeyNotFound)
    client.put_end(grant.put_id)
    assert client.exists(b"k") == [1]


def test_p1_ending_twice_is_harmless_and_commits_once(world: World) -> None:
    world.node("n", 4096)
    client = world.client()
    grant = client.grant(b"k")
    client.put_end(grant.put_id)
    client.put_end(grant.put_id)
    assert len(world.facts_of(ObjectCommitted)) == 1
    client.remove(b"k")
    with pytest.raises(StalePut):
        client.put_end(grant.put_id)


def test_p1_another_size_is_a_conflict_with_a_readable_and_with_an_unfinished_object(world: World) -> None:
    world.node("n", 4096)
    client = world.client()
    client.put(b"done", size=64)
    client.grant(b"open", size=64)
    for key in (b"done", b"open"):
        assert isinstance(error_of(client.put_start(key, size=65)[0]), KeyConflict)
    entry = client.put_start(b"done", size=64)[0]
    assert isinstance(entry, Existing)


def test_p1_an_existing_key_with_the_same_size_is_success_without_a_transfer(world: World) -> None:
    world.node("n", 4096)
    client = world.client()
    (first,) = client.put(b"k")
    assert client.put_start(b"k") == [Existing(first.put_id)]


def test_p1_a_key_removed_and_written_again_is_another_object(world: World) -> None:
    world.node("n", 4096)
    client = world.client()
    (old,) = client.put(b"k", size=64)
    lease = client.lease(b"k")
    client.remove(b"k", force=True)
    (new,) = client.put(b"k", size=128)
    assert new.put_id != old.put_id
    assert new.extents[0].offset != old.extents[0].offset
    client.release(lease)
    assert client.locate(b"k").objects[0].size_bytes == 128


def test_p1_too_few_landed_replicas_close_the_put(world: World) -> None:
    world.node("n1", 4096)
    world.node("n2", 4096)
    client = world.client()
    grant = client.grant(b"k", replicas=2, min_replicas=2)
    with pytest.raises(TransferFailed):
        client.put_end(grant.put_id, landed=0b01)
    assert client.exists(b"k") == [0]
    with pytest.raises(StalePut):
        client.put_end(grant.put_id)


def test_p1_fewer_replicas_than_granted_commit_degraded_and_readers_see_only_what_landed(world: World) -> None:
    world.node("n1", 4096)
    world.node("n2", 4096)
    client = world.client()
    grant = client.grant(b"k", replicas=2)
    done = client.ask(commands.PutEnd((grant.put_id,), (7,), (0b10,)), Done)
    assert (done.errors, done.degraded) == ((), (0,))
    assert client.locate(b"k").objects[0].extents == (grant.extents[1],)


def test_p1_a_replica_that_landed_and_is_uncertain_did_not_land(world: World) -> None:
    world.node("n1", 4096)
    client = world.client()
    grant = client.grant(b"k")
    with pytest.raises(TransferFailed):
        client.put_end(grant.put_id, landed=1, uncertain=1)
    assert client.exists(b"k") == [0]
    assert world.quarantined_bytes() == 64


def test_p1_masks_and_checksums_out_of_range_leave_the_put_open(world: World) -> None:
    world.node("n1", 4096)
    client = world.client()
    grant = client.grant(b"k")
    for options in ({"landed": 0b10}, {"landed": 1, "uncertain": 4}, {"landed": 1, "checksum": -1}):
        with pytest.raises(InvalidArgument):
            client.put_end(grant.put_id, **options)
    client.put_end(grant.put_id)


def test_p1_one_key_twice_in_a_batch_is_written_once(world: World) -> None:
    world.node("n", 4096)
    client = world.client()
    first, second = client.put_start(b"k", b"k")
    assert isinstance(first, PutGrant)
    assert isinstance(second, Pending) and second.in_progress
    client.put_end(first.put_id)
    assert client.wait(second.ticket) == [Existing(first.put_id)]
