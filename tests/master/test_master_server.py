"""The master's shell: whatever one peer does wrong costs that peer its connection, and nobody else anything."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pykvpool.core.effects import Effects
from pykvpool.errors import (
    Closed,
    ConfigError,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    LimitExceeded,
    Overloaded,
    ProtocolError,
    Refused,
)
from pykvpool.master import MasterServer, connection, server
from pykvpool.master.stepper import FAILED_TICK_PAUSE_MS
from pykvpool.model.commands import Exists
from pykvpool.model.events import Disconnected, Event, Hello, Request, Tick
from pykvpool.model.facts import SessionOpened
from pykvpool.model.ids import PutId, RequestId, ScopeId, SegmentId
from pykvpool.model.instructions import HashExtents
from pykvpool.model.replies import Flags
from pykvpool.protocol.codec import decode_handshake, encode
from pykvpool.protocol.frames import HEADER, MAX_FRAME_BYTES
from pykvpool.protocol.messages import Farewell, InstructionFrame, Parting, ReplyFrame
from pykvpool.runtime import real_runtime
from pykvpool.transport import inproc
from tests.master.raw_peer import RawPeer, farewell_after
from tests.transport.stage import Stage

EXISTS = Exists(ScopeId(1), (b"k",))
YES = Flags(b"\x01")


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage() as stage:
        yield stage


@pytest.fixture
async def tcp_stage() -> AsyncIterator[Stage]:
    async with Stage("tcp://127.0.0.1:0") as stage:
        yield stage


# -- P12: bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: master\r\n\r\n", "over the limit"),
        (HEADER.pack(1 << 31), "over the limit"),
        (HEADER.pack(3) + b"\xc1\xc1\xc1", "malformed"),
        (HEADER.pack(0), "truncated"),
        (HEADER.pack(1) + b"\x05", "Expected `array`"),
        (HEADER.pack(100_000) + bytes(10), "over the limit"),
    ],
)
async def test_p12_strangers_that_speak_another_protocol_are_told_and_cut_and_nobody_else_notices(
    tcp_stage: Stage, data: bytes, words: str
) -> None:
    session = await tcp_stage.session()
    farewell = await farewell_after(tcp_stage, data)
    assert farewell is not None
    assert farewell.code == ProtocolError.code
    assert words in farewell.message
    assert await session.call(EXISTS) == YES


async def test_p12_a_stranger_that_hangs_up_inside_a_frame_costs_only_itself(tcp_stage: Stage) -> None:
    session = await tcp_stage.session()
    await farewell_after(tcp_stage, HEADER.pack(100) + b"half", eof=True)
    await farewell_after(tcp_stage, b"", eof=True)
    await farewell_after(tcp_stage, b"\x01\x00", eof=True)
    assert await session.call(EXISTS) == YES


async def test_p12_random_bytes_never_harm_another_session(tcp_stage: Stage) -> None:
    session = await tcp_stage.session()

    @settings(max_examples=1, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.binary(min_size=1, max_size=200), min_size=20, max_size=20))
    def draw(drawn: list[bytes]) -> None:
        collected.extend(drawn)

    collected: list[bytes] = []
    draw()
    for data in collected:
        await farewell_after(tcp_stage, data, eof=True)
        assert await session.call(EXISTS) == YES


async def test_p12_a_bad_command_is_answered_to_its_request_and_the_connection_lives_on(stage: Stage) -> None:
    peer = await RawPeer.enter(stage)
    peer.send(["request", 1, 0, ["no_such_verb", 1]])
    peer.send(["request", 2, 0, ["exists", 1, "text"]])
    peer.send(["request", 3, 0, ["exists", 1, [b"k"]]])
    first, second, third = [await peer.receive() for _ in range(3)]
    assert (first.request_id, first.reply.code) == (1, ProtocolError.code)
    assert "unknown verb 'no_such_verb'" in first.reply.message
    assert "at hashes" in second.reply.message
    assert third == ReplyFrame(RequestId(3), YES)


@pytest.mark.parametrize(
    "message",
    [
        ["shout"],
        ["reply", 1, ["done"]],
        ["request", "one", 0, ["heartbeat"]],
        ["hello", "pykvpool", 1, "", "again", "client", 1, b"n" * 16],
        7,
        {},
    ],
)
async def test_p12_a_frame_that_is_no_request_ends_its_connection_with_a_reason(stage: Stage, message: object) -> None:
    session = await stage.session()
    peer = await RawPeer.enter(stage)
    gone = asyncio.ensure_future(stage.core.seen(lambda event: isinstance(event, Disconnected)))
    peer.send(message)
    farewell = await peer.receive()
    assert isinstance(farewell, Farewell)
    assert farewell.code == ProtocolError.code
    assert farewell.message
    assert await peer.receive() is None
    assert (await gone).session == peer.welcome.session
    assert await session.call(EXISTS) == YES


async def test_p12_a_frame_over_the_limit_ends_its_connection_before_it_is_read() -> None:
    async with Stage("tcp://127.0.0.1:0") as stage:
        session = await stage.session()
        peer = await RawPeer.enter(stage)
        peer.stream._transport.write(struct.pack("<I", MAX_FRAME_BYTES + 1))
        farewell = await peer.receive()
        assert farewell.code == ProtocolError.code
        assert "over the limit" in farewell.message
        assert await session.call(EXISTS) == YES


async def test_a_reply_too_large_for_a_frame_becomes_an_error_of_that_call(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await stage.session()
    many = Exists(ScopeId(1), (b"k",) * 200)
    monkeypatch.setattr("pykvpool.transport.inproc.frame_header", _limit_replies_to(150))
    with pytest.raises(LimitExceeded, match="too much"):
        await session.call(many)
    assert await session.call(EXISTS) == YES


def _limit_replies_to(limit_bytes: int):
    def header(size_bytes: int) -> bytes:
        # Requests of this test are larger than its replies; only what is between is a reply that is too large.
        if limit_bytes < size_bytes < 400:
            raise LimitExceeded("too much for one frame")
        return HEADER.pack(size_bytes)

    return header


# -- strangers ---------------------------------------------------------------------------------------------------------


async def test_a_stranger_that_says_nothing_is_shown_out(tcp_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_TIMEOUT_S", 0.02)
    farewell = await farewell_after(tcp_stage, b"")
    assert farewell is not None
    assert farewell.code == DeadlineExceeded.code
    assert "no handshake within" in farewell.message


async def test_of_too_many_strangers_the_oldest_has_to_go_and_honest_peers_get_in(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_STRANGERS", 3)
    silent = [await stage.transports.connect(stage.address) for _ in range(3)]
    session = await stage.session()
    frame = await silent[0].recv()
    assert decode_handshake(frame).code == Overloaded.code
    assert await session.call(EXISTS) == YES
    for stream in silent:
        stream.abort()


async def test_beyond_the_most_connections_a_peer_is_told_why(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
    session = await stage.session()
    with pytest.raises(Exception, match="connections already"):
        await stage.session("one too many")
    assert await session.call(EXISTS) == YES
    await session.close()
    await (await stage.session("after that")).close()


async def test_both_ends_learn_why_a_peer_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with Stage(token="right") as stage:
        with pytest.raises(Refused, match="the token does not match"):
            await stage.session(token="wrong")
        with pytest.raises(Refused, match="cluster 'green' is not cluster ''"):
            await stage.session(cluster="green")
        with pytest.raises(Refused, match="none was given"):
            await stage.session(token=None)
        await stage.session()  # by now the master has read that last farewell
    for words in ("the token does not match", "cluster 'green' is not"):
        assert words in caplog.text
    [gave_up] = [line for line in caplog.messages if "none was given" in line]
    assert gave_up.startswith("no session for somebody who says to be 'engine-0' at ")
    assert gave_up.endswith(": it gave up: this master requires a token and none was given")


# -- sessions and connections ------------------------------------------------------------------------------------------


async def test_a_second_connection_of_a_session_replaces_the_first(stage: Stage) -> None:
    first = await RawPeer.enter(stage)
    second = await RawPeer.enter(stage)
    assert second.welcome.session == first.welcome.session
    assert second.welcome.resumed
    farewell = await first.receive()
    assert (farewell.code, farewell.parting) == (Closed.code, Parting.REPLACED)
    assert await first.receive() is None
    second.send(["request", 1, 0, ["exists", 1, [b"k"]]])
    assert await second.receive() == ReplyFrame(RequestId(1), YES)
    assert not any(isinstance(event, Disconnected) for event in stage.core.events)


async def test_what_a_replaced_connection_had_sent_before_is_void(stage: Stage) -> None:
    first = await RawPeer.enter(stage)
    stage.core.before = lambda event: _send_late(event)

    def _send_late(event: Event) -> None:
        if isinstance(event, Hello):
            first.send(["request", 1, 0, ["exists", 1, [b"late"]]])

    second = await RawPeer.enter(stage)
    second.send(["request", 1, 0, ["exists", 1, [b"k", b"k"]]])
    assert await second.receive() == ReplyFrame(RequestId(1), Flags(b"\x01\x01"))
    assert [request.command.hashes for request in stage.core.carried_out] == [(b"k", b"k")]


async def test_a_peer_that_does_not_read_is_cut_and_nobody_else_notices(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inproc, "SEND_LIMIT_BYTES", 1 << 20)
    session = await stage.session()
    lazy = await RawPeer.enter(stage)
    bulk = HashExtents(SegmentId(1), tuple(PutId(1 << 40) for _ in range(20_000)), ())
    gone = asyncio.ensure_future(stage.core.seen(lambda event: isinstance(event, Disconnected)))

    def flood(event: Event) -> Effects:
        return Effects(instructions=[(lazy.welcome.session, bulk)] * 10)

    stage.core.on_tick = lambda now: _once(stage, flood(Tick()))
    stage.core.deadline = 0
    assert await session.call(EXISTS) == YES
    assert (await gone).session == lazy.welcome.session
    assert await session.call(EXISTS) == YES


async def test_who_does_not_take_replies_is_not_asked_for_more_requests(stage: Stage) -> None:
    session = await stage.session()
    lazy = await RawPeer.enter(stage)
    keys = [b"k"] * 16_384
    for number in range(1, 200):
        lazy.send(["request", number, 0, ["exists", 1, keys]])
        await asyncio.sleep(0)
    assert await session.call(EXISTS) == YES
    served = sum(1 for request in stage.core.carried_out if request.session == lazy.welcome.session)
    assert 0 < served < 199
    for number in range(1, 200):
        assert (await lazy.receive()).request_id == number


async def test_an_instruction_reaches_its_session(stage: Stage) -> None:
    peer = await RawPeer.enter(stage)
    instruction = HashExtents(SegmentId(1), (PutId(1),), ())
    stage.core.on_tick = lambda now: _once(stage, Effects(instructions=[(peer.welcome.session, instruction)]))
    stage.core.deadline = 0
    peer.send(["request", 1, 0, ["heartbeat"]])
    received = [await peer.receive(), await peer.receive()]
    assert InstructionFrame(instruction) in received


def _once(stage: Stage, effects: Effects) -> Effects:
    stage.core.deadline = None
    return effects


# -- steps -------------------------------------------------------------------------------------------------------------


async def test_a_bug_in_the_core_is_logged_answered_and_survived(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    session, other = await stage.session(), await stage.session("other")

    def fail(event: Event) -> None:
        if isinstance(event, Request) and event.session == session.session_id:
            raise ZeroDivisionError("the bug")

    stage.core.before = fail
    with pytest.raises(InternalError, match="its log says more"):
        await session.call(EXISTS)
    assert await other.call(EXISTS) == YES
    stage.core.before = lambda event: None
    assert await session.call(EXISTS) == YES
    assert "ZeroDivisionError: the bug" in caplog.text


async def test_a_bug_at_a_hello_refuses_that_peer(stage: Stage) -> None:
    session = await stage.session()

    def fail(event: Event) -> None:
        if isinstance(event, Hello):
            raise ZeroDivisionError("the bug")

    stage.core.before = fail
    with pytest.raises(Exception, match="failed on this hello"):
        await stage.session("unlucky")
    stage.core.before = lambda event: None
    assert await session.call(EXISTS) == YES


async def test_a_bug_at_a_tick_does_not_spin(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await stage.session()
    ticks: list[Event] = []

    def fail(event: Event) -> None:
        if isinstance(event, Tick):
            ticks.append(event)
            raise ZeroDivisionError("the bug")

    stage.core.before = fail
    stage.core.deadline = 0
    for _ in range(50):
        assert await session.call(EXISTS) == YES
    assert FAILED_TICK_PAUSE_MS >= 1_000
    assert len(ticks) == 1


async def test_the_core_is_woken_at_its_deadline_without_any_request(stage: Stage) -> None:
    session = await stage.session()
    due = stage.runtime.clock.now_ms() + 20
    ticked: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_tick(now: int) -> Effects:
        ticked.set_result(now)
        return _once(stage, Effects())

    stage.core.on_tick = on_tick
    stage.core.deadline = due
    assert await session.call(EXISTS) == YES
    assert await ticked >= due


async def test_requests_get_in_between_the_slices_of_long_work(stage: Stage) -> None:
    session = await stage.session()
    order: list[str] = []
    slices = 0

    def on_tick(now: int) -> Effects:
        nonlocal slices
        slices += 1
        order.append("slice")
        if slices == 2_000:
            stage.core.deadline = None
        return Effects()

    stage.core.on_tick = on_tick
    stage.core.deadline = 0
    for _ in range(20):
        await session.call(EXISTS)
        order.append("call")
    assert "slice" in order[order.index("call") :]
    assert slices < 2_000
    stage.core.deadline = None


async def test_facts_reach_subscribers_before_replies_leave(stage: Stage) -> None:
    order: list[str] = []
    stage.server.subscribe(lambda facts: order.append(type(facts[0]).__name__))
    stage.faults.on_far_send = lambda frame: order.append(msgpack.unpackb(frame)[0])
    await stage.session()
    assert order == ["challenge", "SessionOpened", "accepted"]


async def test_a_subscription_can_end_and_one_that_fails_harms_nobody(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[object] = []

    def fail(facts: object) -> None:
        raise RuntimeError("the subscriber's bug")

    stage.server.subscribe(fail)
    end = stage.server.subscribe(seen.extend)
    await (await stage.session("first")).close()
    end()
    await (await stage.session("second")).close()
    opened = [fact.name for fact in seen if isinstance(fact, SessionOpened)]
    assert opened == ["first"]
    assert "the subscriber's bug" in caplog.text


# -- start and end -----------------------------------------------------------------------------------------------------


async def test_addresses_have_the_real_ports_and_every_one_works(tmp_path) -> None:
    runtime = real_runtime()
    stage = Stage()
    listen = ["tcp://127.0.0.1:0", f"unix://{tmp_path}/m.sock", "inproc://"]
    stage.server = MasterServer(stage.core, listen, runtime, transports=stage.transports)
    async with stage:
        assert not stage.server.addresses[0].endswith(":0")
        for number, address in enumerate(stage.server.addresses):
            stream = await stage.transports.connect(address)
            stream.send(msgpack.packb(["hello", "pykvpool", 1, "", f"peer{number}", "client", 1, os.urandom(16)]))
            assert decode_handshake(await stream.recv()).version == 1
            stream.close()
            await stream.wait_closed()
    runtime.offload.close()


async def test_where_one_address_is_taken_none_is_listened_on() -> None:
    async with Stage("inproc://taken") as stage:
        failing = MasterServer(
            stage.core, ["inproc://free", "inproc://taken"], stage.runtime, transports=stage.transports
        )
        with pytest.raises(ConfigError, match="taken"):
            await failing.start()
        listener = await stage.transports.listen("inproc://free", lambda stream: None)
        await listener.close()


@pytest.mark.parametrize("listen", [[], "tcp://127.0.0.1:0", ["127.0.0.1:0"], ["tcp://host:port"]])
async def test_a_wrong_list_of_addresses_is_refused_when_it_is_given(listen: object) -> None:
    stage = Stage()
    with pytest.raises(InvalidArgument):
        MasterServer(stage.core, listen, stage.runtime)


async def test_closing_tells_everybody_and_twice_is_harmless(stage: Stage) -> None:
    peer = await RawPeer.enter(stage)
    stranger = await stage.transports.connect(stage.address)
    await asyncio.sleep(0)
    await stage.server.close()
    await stage.server.close()
    farewell = await peer.receive()
    assert farewell.parting is Parting.CLOSING
    assert "shutting down" in farewell.message
    assert decode_handshake(await stranger.recv()).parting is Parting.CLOSING
    assert await stranger.recv() is None


async def test_a_farewell_of_a_peer_ends_its_connection_quietly(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    peer = await RawPeer.enter(stage)
    peer.stream.send(encode(Farewell(0, "that was all")))
    assert await peer.receive() is None
    assert caplog.text == ""
