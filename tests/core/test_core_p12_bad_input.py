"""P12: bad input is refused at the door with a clear error, costs nobody else anything, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from pykvpool.errors import InvalidArgument, LimitExceeded, NotOwner, Overloaded, SessionExpired
from pykvpool.model import commands
from pykvpool.model.commands import MAX_BATCH_KEYS, MAX_SCOPES
from pykvpool.model.events import Request
from pykvpool.model.ids import Generation, LeaseId, PutId, RequestId, ScopeId, SegmentId, SessionId
from pykvpool.model.keys import MAX_KEY_BYTES, Scope
from pykvpool.model.replies import Beat, Done, ErrorInfo, Flags, Interned, PutGrant
from tests.core.driver import World, error_of

LONG = b"k" * (MAX_KEY_BYTES + 1)
MANY = tuple(b"%d" % number for number in range(MAX_BATCH_KEYS + 1))
ZERO = ScopeId(0)

REFUSED = [
    (commands.PutStart(ZERO, MANY, (1,) * len(MANY)), LimitExceeded, "split the batch"),
    (commands.PutStart(ZERO, (b"a", b"b"), (1,)), InvalidArgument, "sizes"),
    (commands.PutStart(ZERO, (b"a",), (1,), (None, None)), InvalidArgument, "parents"),
    (commands.PutStart(ZERO, (b"a",), (1,), replicas=9), InvalidArgument, "replicas 9"),
    (commands.PutStart(ZERO, (b"a",), (1,), replicas=1, min_replicas=2), InvalidArgument, "min_replicas 2"),
    (commands.PutStart(ZERO, (b"a",), (1,), replicas=0, min_replicas=0), InvalidArgument, "replicas 0"),
    (commands.PutStart(ZERO, (b"a",), (1,), replicas=2, min_granted=3), InvalidArgument, "min_granted 3"),
    (commands.PutStart(ZERO, (b"a",), (1,), replicas=3, min_replicas=2, min_granted=1), InvalidArgument, "min_granted"),
    (commands.PutStart(ZERO, (b"a",), (1,), wait_ms=-1), InvalidArgument, "wait_ms"),
    (commands.PutStart(ScopeId(99), (b"a",), (1,)), InvalidArgument, "scope 99"),
    (commands.PutStart(ScopeId(-1), (b"a",), (1,)), InvalidArgument, "scope -1"),
    (commands.PutWait((), -1), InvalidArgument, "timeout_ms"),
    (commands.PutEnd((PutId(1),), (), (1,)), InvalidArgument, "checksums"),
    (commands.PutEnd((PutId(1),), (None,), ()), InvalidArgument, "landed"),
    (commands.PutRevoke((PutId(1),), (0, 0)), InvalidArgument, "uncertain"),
    (commands.GetReplicas(ScopeId(5), (b"a",)), InvalidArgument, "scope 5"),
    (commands.GetReplicas(ZERO, (b"a",), -5), InvalidArgument, "lease_ms"),
    (commands.GetReplicas(ZERO, MANY), LimitExceeded, str(MAX_BATCH_KEYS)),
    (commands.Exists(ZERO, (b"a", LONG)), InvalidArgument, str(MAX_KEY_BYTES)),
    (commands.Exists(ZERO, (b"",)), InvalidArgument, "empty"),
    (commands.Exists(ZERO, MANY), LimitExceeded, str(MAX_BATCH_KEYS)),
    (commands.MatchPrefix((b"a",), (ZERO, ScopeId(7))), InvalidArgument, "scope 7"),
    (commands.MatchPrefix((b"a",), (ZERO,), presence=(1,)), InvalidArgument, "presence"),
    (commands.MatchPrefix((b"a",), (ZERO,), presence=(0, 0)), InvalidArgument, "presence"),
    (commands.MatchPrefix((b"a",), (ZERO,) * (MAX_SCOPES + 1)), LimitExceeded, str(MAX_SCOPES)),
    (commands.MatchPrefix((LONG,), (ZERO,)), InvalidArgument, str(MAX_KEY_BYTES)),
    (commands.Touch(ZERO, (b"",)), InvalidArgument, "empty"),
    (commands.Renew((LeaseId(1),), -1), InvalidArgument, "lease_ms"),
    (commands.ListKeys(limit=0), InvalidArgument, "limit"),
    (commands.ListKeys(cursor=-1), InvalidArgument, "cursor"),
    (commands.ListKeys(pattern="*" * 2_000), LimitExceeded, "pattern"),
    (commands.RemoveAll(pattern="*" * 2_000), LimitExceeded, "pattern"),
    (commands.RemoveAll(scopes=(ZERO, ScopeId(7))), InvalidArgument, "scope 7"),
    (commands.RemoveAll(scopes=(ZERO,) * (MAX_SCOPES + 1)), LimitExceeded, str(MAX_SCOPES)),
    (commands.Watch((ZERO, ScopeId(7))), InvalidArgument, "scope 7"),
    (commands.Watch((ZERO,) * (MAX_SCOPES + 1)), LimitExceeded, str(MAX_SCOPES)),
    (commands.Intern((Scope(""),)), InvalidArgument, "namespace"),
    (commands.Intern((Scope("n", group=-1),)), InvalidArgument, "group"),
    (commands.Intern((Scope("n" * 300),)), LimitExceeded, "namespace"),
    (commands.Mount(Generation(1), 0, ()), InvalidArgument, "segment of 0 bytes"),
    (commands.Mount(Generation(1), 1 << 63, ()), InvalidArgument, "segment of"),
    (commands.Mount(Generation(1), 640, ("",)), InvalidArgument, "endpoint"),
    (commands.Mount(Generation(1), 640, ("x",) * 17), LimitExceeded, "endpoints"),
    (commands.Hashed(SegmentId(1), (PutId(1),), (1 << 64,)), InvalidArgument, "64-bit"),
]


@pytest.mark.parametrize(("command", "kind", "word"), REFUSED, ids=lambda value: type(value).__name__)
def test_p12_a_bad_command_is_refused_and_changes_nothing(
    world: World, command: commands.Command, kind: type[Exception], word: str
) -> None:
    node = world.node("n", 640)
    client = world.client()
    before = world.core.durable_state()
    with pytest.raises(kind, match=word):
        node.ask(command, Done)
    assert world.core.durable_state() == before
    assert isinstance(client.put_start(b"fine")[0], PutGrant)
    assert isinstance(node.ask(commands.Heartbeat(), Beat), Beat)


def test_p12_one_bad_key_costs_its_own_entry_only(world: World) -> None:
    world.node("n", 6400)
    client = world.client()
    entries = client.put_start(b"a", LONG, b"", b"b")
    assert [isinstance(entry, PutGrant) for entry in entries] == [True, False, False, True]
    assert "1025 bytes" in error_of(entries[1]).message
    for parent, word in ((LONG, "parent"), (b"", "parent"), (b"c", "its own parent")):
        assert word in error_of(client.put_start(b"c", parents=(parent,))[0]).message
    located = client.locate(b"x", LONG)
    assert [error_of(info).kind for info in located.objects] == ["KeyNotFound", "InvalidArgument"]
    with pytest.raises(InvalidArgument):
        client.remove(b"")


WRITES = [
    commands.PutStart(ZERO, (b"a",), (1,)),
    commands.PutWait((), 0),
    commands.PutForget(()),
    commands.PutEnd((), (), ()),
    commands.PutRevoke(()),
    commands.SetPin(ZERO, (b"a",), commands.Pin.HARD),
    commands.Remove(ZERO, (b"a",)),
    commands.RemoveAll(),
]
NODE_WORDS = [
    commands.Mount(Generation(1), 640, ()),
    commands.Unmount(SegmentId(1)),
    commands.Fenced(SessionId(1), SegmentId(1), 1),
    commands.Hashed(SegmentId(1), (), ()),
]


@pytest.mark.parametrize("command", WRITES + NODE_WORDS, ids=lambda command: type(command).__name__)
def test_p12_a_reader_changes_nothing(world: World, command: commands.Command) -> None:
    world.client()
    reader = world.peer("reader", "reader")
    with pytest.raises(InvalidArgument, match="is a reader"):
        reader.ask(command, Done)
    assert reader.exists(b"a") == [0]


@pytest.mark.parametrize("command", NODE_WORDS, ids=lambda command: type(command).__name__)
def test_p12_a_client_does_not_speak_for_a_node(world: World, command: commands.Command) -> None:
    client = world.client()
    with pytest.raises(InvalidArgument, match="for nodes"):
        client.ask(command, Done)


def test_p12_a_node_speaks_for_its_own_segments_only(world: World) -> None:
    world.node("n", 640)
    other = world.node("m")
    segment = next(iter(world.core._context.state.segments.by_id))
    for command in (
        commands.Unmount(segment),
        commands.Fenced(SessionId(1), segment, 1),
        commands.Hashed(segment, (), ()),
    ):
        with pytest.raises(NotOwner):
            other.ask(command, Done)


@pytest.mark.parametrize(("name", "role"), [("", "client"), ("n" * 257, "client"), ("n", "root"), ("n", "")])
def test_p12_a_hello_with_a_bad_name_or_role_is_refused(world: World, name: str, role: str) -> None:
    with pytest.raises(InvalidArgument):
        world.hello(name, role)


def test_p12_a_session_does_not_change_its_role(world: World) -> None:
    world.hello("n", "client", incarnation=77)
    with pytest.raises(InvalidArgument, match="cannot come back"):
        world.hello("n", "reader", incarnation=77)


def test_p12_an_unknown_session_is_told_so(world: World) -> None:
    effects = world.step(Request(SessionId(99), RequestId(1), RequestId(0), commands.Heartbeat()))
    ((session, request, reply),) = effects.replies
    assert (session, request) == (99, 1)
    assert isinstance(reply, ErrorInfo) and isinstance(reply.error(), SessionExpired)


# -- requests --------------------------------------------------------------------------------------------------------


def test_p12_a_repeated_request_gets_the_first_reply_again_and_is_carried_out_once(world: World) -> None:
    world.node("n", 640)
    client = world.client()
    command = commands.PutStart(world.scope, (b"a",), (64,))
    request = client.send(command)
    client.repeat(request, command)
    first, second = client.replies[request]
    assert first == second
    assert world.core._context.state.puts.last_id == 1
    assert world.core.counters["requests_repeated_total"] == 1


def test_p12_a_repeat_of_a_pending_request_is_answered_once(world: World) -> None:
    world.node("n", 64)
    client = world.client()
    client.put(b"a")
    lease = client.lease(b"a")
    ticket = client.pending(b"b").ticket
    request = client.send_wait(ticket)
    client.repeat(request, commands.PutWait((ticket,), 30_000))
    assert client.reply(request) is None
    client.release(lease)
    assert len(client.replies[request]) == 1


def test_p12_replies_are_kept_until_acknowledged_and_their_number_is_bounded(new_world: Any) -> None:
    world = new_world(max_requests_per_session=3)
    client = world.peer("client")
    sent = [client.send(commands.Heartbeat()) for _ in range(3)]
    refused = client.send(commands.Heartbeat())
    assert isinstance(error_of(client.reply(refused)), Overloaded)
    client.send(commands.Heartbeat(), acknowledged=sent[1])
    assert isinstance(client.reply(client.last_request), Beat)
    client.repeat(sent[0], commands.Heartbeat())
    assert isinstance(error_of(client.replies[sent[0]][1]), InvalidArgument)
    client.repeat(sent[2], commands.Heartbeat())
    assert isinstance(client.replies[sent[2]][1], Beat)


def test_p12_a_reply_that_arrived_out_of_order_is_forgotten_but_its_request_is_not_new_again(new_world: Any) -> None:
    world = new_world(max_requests_per_session=3)
    world.node("n", 640)
    client = world.client()
    client.put(b"a", pin=commands.Pin.HARD)
    start = client.last_request + 1
    world.step(Request(client.id, RequestId(start), RequestId(start - 1), commands.PutWait((), 5_000)))
    for number in range(start + 1, start + 9):
        received = (RequestId(number - 1),) if number > start + 1 else ()
        command = commands.PutStart(world.scope, (b"%d" % number,), (64,))
        world.step(Request(client.id, RequestId(number), RequestId(start - 1), command, received))
        assert not isinstance(client.reply(number), ErrorInfo), "a long wait pins no other replies"
    client.last_request = start + 8
    puts = world.core._context.state.puts.last_id
    again = commands.PutStart(world.scope, (b"again",), (64,))
    client.repeat(start + 2, again)
    assert isinstance(error_of(client.replies[start + 2][1]), InvalidArgument)
    assert world.core._context.state.puts.last_id == puts


def test_p12_requests_that_arrive_out_of_order_are_each_carried_out_once(world: World) -> None:
    client = world.peer("client")
    for number in (5, 3, 5, 3, 1):
        client.repeat(number, commands.Heartbeat())
    assert {number: len(replies) for number, replies in client.replies.items()} == {5: 2, 3: 2, 1: 1}
    assert world.core.counters["requests_total"] == 3
    client.last_request = 1 << 40
    client.send(commands.Heartbeat())
    assert "leaps" in error_of(client.reply(client.last_request)).message


def test_p12_a_request_cannot_acknowledge_itself(world: World) -> None:
    client = world.peer("client")
    client.send(commands.Heartbeat(), acknowledged=1)
    assert isinstance(error_of(client.reply(1)), InvalidArgument)


def test_p12_a_refused_command_is_remembered_like_any_other_reply(world: World) -> None:
    client = world.client()
    command = commands.Exists(ScopeId(50), (b"a",))
    request = client.send(command)
    client.repeat(request, command)
    assert len(client.replies[request]) == 2 and client.replies[request][0] == client.replies[request][1]


def test_p12_interning_is_stable_and_shared(world: World) -> None:
    one, other = world.peer("one"), world.peer("other")
    scopes = (Scope("a"), Scope("b"), Scope("a"))
    first = one.ask(commands.Intern(scopes), Interned).scopes
    assert first[0] == first[2] != first[1]
    assert other.ask(commands.Intern((Scope("b"), Scope("c"))), Interned).scopes[0] == first[1]
    assert other.ask(commands.Exists(first[0], ()), Flags).flags == b""
