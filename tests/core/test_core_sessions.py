"""Sessions: resuming, superseding, ending; and a superseded one that does not fight back."""

from __future__ import annotations

from typing import Any

import pytest

from pykvpool.errors import SessionExpired
from pykvpool.model import commands
from pykvpool.model.events import Hello, Tick
from pykvpool.model.facts import SessionEnded, SessionOpened
from pykvpool.model.instructions import SessionOver
from pykvpool.model.replies import Beat, Existing, PutGrant, State
from tests.core.driver import World, error_of


def test_the_same_incarnation_resumes_and_keeps_everything(world: World) -> None:
    world.node("n", 640)
    client = world.client()
    grant = client.grant(b"a")
    client.disconnect()
    world.advance(world.config.reconnect_grace_ms - 1)
    welcome = world.hello("client", incarnation=client.incarnation)
    assert (welcome.session, welcome.resumed, welcome.epoch) == (client.id, True, 1)
    client.put_end(grant.put_id)
    assert client.exists(b"a") == [1]
    assert len(world.facts_of(SessionOpened)) == 2


def test_another_incarnation_supersedes_and_the_old_commands_are_refused(world: World) -> None:
    world.node("n", 640)
    old = world.client()
    grant = old.grant(b"a")
    new = world.peer("client")
    assert new.id != old.id
    assert [fact.reason for fact in world.facts_of(SessionEnded)] == ["superseded"]
    assert len(old.told(SessionOver)) == 1
    with pytest.raises(SessionExpired):
        old.put_end(grant.put_id)
    world.settle()
    assert world.quarantined_bytes() == 64
    assert isinstance(new.put_start(b"a")[0], PutGrant)


def test_a_superseded_incarnation_is_told_so_and_pushes_nobody_out(world: World) -> None:
    old = world.client()
    new = world.peer("client")
    with pytest.raises(SessionExpired, match="superseded"):
        world.hello("client", incarnation=old.incarnation)
    assert isinstance(new.ask(commands.Heartbeat(), Beat), Beat)


def test_who_insists_on_its_session_gets_that_one_or_none(world: World) -> None:
    client = world.client()
    event = Hello(50, "client", "client", client.incarnation, resume=client.id)
    assert world.step(event).replies[0][2].resumed
    for name, incarnation in (("client", client.incarnation + 1), ("stranger", 99)):
        reply = world.step(Hello(51, name, "client", incarnation, resume=client.id)).replies[0][2]
        assert error_of(reply).kind == "SessionExpired"
    assert client.exists(b"a") == [0], "nobody was pushed out"


def test_only_so_many_ended_incarnations_are_remembered(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr("pykvpool.core.sessions.REMEMBERED_INCARNATIONS", 2)
    old = [world.peer("a") for _ in range(4)]
    with pytest.raises(SessionExpired):
        world.hello("a", incarnation=old[2].incarnation)
    assert not world.hello("a", incarnation=old[0].incarnation).resumed


def test_any_request_is_a_sign_of_life(world: World) -> None:
    client = world.client()
    for _ in range(5):
        world.advance(world.config.session_ttl_ms - 1)
        assert client.exists(b"a") == [0]
    world.advance(world.config.session_ttl_ms)
    with pytest.raises(SessionExpired):
        client.exists(b"a")


def test_time_that_runs_backwards_is_taken_as_standing_still(world: World) -> None:
    world.node("n", 640)
    client = world.client()
    client.put(b"a")
    world.advance(900)
    client.exists(b"a")
    world.now -= 900
    lease = client.lease(b"a", lease_ms=5_000)
    world.now += 900
    world.advance(4_999)
    assert lease in world.core._context.leases.by_id
    client.fine(commands.Renew((lease,), 5_000))


def test_a_waiting_request_of_an_ended_session_is_dropped_with_it(world: World) -> None:
    node = world.node("n", 64)
    client, writer, next_writer = world.client(), world.client("writer"), world.client("next")
    client.put(b"a")
    lease = client.lease(b"a", lease_ms=30_000)
    request = writer.send_wait(writer.pending(b"b").ticket)
    follower = next_writer.pending(b"b")
    writer.disconnect()
    world.idle(world.config.reconnect_grace_ms, node, client, next_writer)
    client.release(lease)
    assert writer.reply(request) is None
    (entry,) = next_writer.wait(follower.ticket)
    assert isinstance(entry, PutGrant)
    next_writer.put_end(entry.put_id)
    assert client.put_start(b"b") == [Existing(entry.put_id)]


def test_the_state_in_numbers_adds_up(world: World) -> None:
    node = world.node("n", 640)
    client = world.client()
    client.put(b"a", b"b")
    client.lease(b"a")
    client.grant(b"c")
    client.put_revoke(client.grant(b"d").put_id, uncertain=1)
    world.advance(100)
    state = client.ask(commands.ClusterState(), State)
    (segment,) = state.segments
    assert (segment.capacity_bytes, segment.free_bytes, segment.used_bytes, segment.quarantined_bytes) == (
        640, 384, 192, 64,
    )  # fmt: skip
    assert (state.objects, state.object_bytes, state.leases, state.open_puts, state.scopes) == (2, 128, 1, 1, 1)
    mine = next(session for session in state.sessions if session.name == "client")
    assert (mine.leases, mine.puts, mine.waiting, mine.connected, mine.idle_ms) == (1, 1, 0, True, 0)
    assert next(session for session in state.sessions if session.name == "n").idle_ms == 100
    assert state.counters["puts_committed_total"] == 2
    assert node.name == "n"


def test_a_busy_master_with_many_deadlines_ends_them_in_slices(new_world: Any) -> None:
    world = new_world(slice_objects=20)
    world.node("n", 64 * 40)
    client = world.client()
    keys = [b"%d" % number for number in range(30)]
    client.put(*keys)
    leases = [client.lease(key, lease_ms=5_000) for key in keys]
    world.now += 5_000
    counts = []
    while world.core.next_deadline() is not None and world.core.next_deadline() <= world.now:
        before = len(world.core._context.leases.by_id)
        world.step(Tick())
        counts.append(before - len(world.core._context.leases.by_id))
        if not world.core._context.leases.by_id:
            break
    assert sum(counts) == len(leases) == 30
    assert max(counts) <= 20 // 8 + 1


def test_p8_a_master_that_was_away_itself_takes_nobody_for_dead(world: World) -> None:
    node = world.node("n", 64)
    client, cut = world.client(), world.client("cut")
    client.put(b"a")
    cut.disconnect()
    # Stopped, or its machine suspended: what the others said meanwhile is still unread.
    world.now += 10 * world.config.session_ttl_ms
    world.step(Tick())
    world.settle()
    assert node.is_alive() and client.is_alive() and cut.is_alive()
    assert client.exists(b"a") == [1]
    # From now on silence counts again.
    world.idle(world.config.reconnect_grace_ms + 1, client)
    assert (node.is_alive(), cut.is_alive()) == (True, False)
    world.idle(world.config.session_ttl_ms, client)
    assert (node.is_alive(), client.is_alive()) == (False, True)
    assert world.core.counters["master_pauses_total"] == 1


def test_p2_leases_run_on_while_the_master_is_away(world: World) -> None:
    world.node("n", 64)
    client = world.client()
    client.put(b"a")
    client.lease(b"a")
    world.now += 10 * world.config.session_ttl_ms
    world.step(Tick())
    assert not world.core._context.leases.by_id
