"""What the session promises to clients and nodes: calls, repeats, loss, renewal, an orderly end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from pykvpool.errors import (
    Closed,
    DeadlineExceeded,
    LimitExceeded,
    Overloaded,
    PoolFull,
    ProtocolError,
    SessionExpired,
    Unavailable,
)
from pykvpool.model.commands import ClusterState, Command, Exists, GetReplicas, Goodbye, Heartbeat, PutWait
from pykvpool.model.events import Disconnected, Hello, Request
from pykvpool.model.ids import ScopeId, SegmentId, TicketId
from pykvpool.model.instructions import DropSegment, Instruction
from pykvpool.model.replies import Counted, Flags, Reply
from pykvpool.protocol.frames import MAX_FRAME_BYTES
from pykvpool.protocol.messages import Parting
from pykvpool.transport import calls as calls_module
from pykvpool.transport.calls import MAX_IN_FLIGHT
from tests.transport.stage import Stage


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage() as stage:
        yield stage


def exists(*keys: bytes) -> Exists:
    return Exists(ScopeId(1), keys or (b"k",))


def is_request_of(kind: type[Command]):
    return lambda event: isinstance(event, Request) and isinstance(event.command, kind)


def hold(stage: Stage, *kinds: type[Command]) -> None:
    stage.core.hold = lambda request: isinstance(request.command, kinds)


async def answer_held(stage: Stage) -> None:
    """Make the core answer what it held, as a timer of it would."""
    done = asyncio.get_running_loop().create_future()

    def on_tick(now: int):
        stage.core.deadline = None
        done.set_result(None)
        return stage.core.answer_held()

    stage.core.on_tick = on_tick
    await tick(stage)
    await done


async def tick(stage: Stage) -> None:
    """The core becomes due: any event makes the shell look at its deadline."""
    stage.core.deadline = 0
    await (await stage.session("ticker")).close()


# -- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:0", "inproc://", "faulty://master"])
async def test_a_call_gets_its_reply_on_every_transport(listen: str) -> None:
    async with Stage(listen) as stage:
        session = await stage.session()
        assert await session.call(exists(b"a", b"b")) == Flags(b"\x01\x01")
        assert session.connected
        assert session.session_id == 1
        assert (session.ttl_ms, session.lease_ms, session.epoch) == (10_000, 10_000, stage.core.epoch)


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:0", "inproc://"])
async def test_ten_thousand_calls_at_once_each_get_their_own_reply(listen: str) -> None:
    async with Stage(listen) as stage:
        session = await stage.session()
        replies = await asyncio.gather(*(session.call(exists(*[b"k"] * (n % 7 + 1))) for n in range(10_000)))
        assert replies == [Flags(b"\x01" * (n % 7 + 1)) for n in range(10_000)]


async def test_never_more_than_the_window_is_in_flight(stage: Stage) -> None:
    session = await stage.session()
    hold(stage, Exists)
    full = asyncio.ensure_future(stage.core.seen(lambda event: len(stage.core.held) == MAX_IN_FLIGHT - 1))
    pending = [asyncio.ensure_future(session.call(exists())) for _ in range(2 * MAX_IN_FLIGHT)]
    await full
    hold(stage)
    beat = stage.core.seen(is_request_of(Exists))
    await answer_held(stage)
    await beat
    assert await asyncio.gather(*pending) == [Flags(b"\x01")] * (2 * MAX_IN_FLIGHT)


async def test_an_error_of_the_master_is_raised_with_its_kind_and_fields(stage: Stage) -> None:
    session = await stage.session()
    stage.core.refuse = lambda request: PoolFull("no room", leased=3)
    with pytest.raises(PoolFull, match="no room") as caught:
        await session.call(exists())
    assert caught.value.fields == {"leased": 3}


async def test_a_reply_that_takes_too_long_is_a_deadline_and_the_session_lives_on(stage: Stage) -> None:
    session = await stage.session()
    hold(stage, Exists)
    with pytest.raises(DeadlineExceeded, match="Exists: the master did not answer within"):
        await session.call(exists(), timeout_s=0.01)
    hold(stage)
    assert await session.call(exists()) == Flags(b"\x01")


async def test_cancelling_a_call_leaves_the_session_healthy_and_its_late_reply_goes_to_the_orphan_hook(
    stage: Stage,
) -> None:
    orphans: asyncio.Queue[tuple[Command, Reply]] = asyncio.Queue()
    session = await stage.session(on_orphan_reply=lambda command, reply: orphans.put_nowait((command, reply)))
    hold(stage, GetReplicas)
    command = GetReplicas(ScopeId(1), (b"k",))
    arrived = asyncio.ensure_future(stage.core.seen(is_request_of(GetReplicas)))
    call = asyncio.ensure_future(session.call(command))
    await arrived
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await session.call(exists()) == Flags(b"\x01")
    await answer_held(stage)
    orphan, reply = await orphans.get()
    assert orphan == command
    assert isinstance(reply, Counted)
    assert orphans.empty()


async def test_a_reply_that_came_in_the_very_moment_of_the_cancellation_is_an_orphan_too(stage: Stage) -> None:
    orphans: list[Command] = []
    session = await stage.session(on_orphan_reply=lambda command, reply: orphans.append(command))
    call = asyncio.ensure_future(session.call(exists()))
    # The reply is set on the loop; cancel in the same turn, before the caller runs again.
    original = session._answer

    def answer_and_cancel(record, reply):
        original(record, reply)
        call.cancel()

    session._answer = answer_and_cancel
    with pytest.raises(asyncio.CancelledError):
        await call
    session._answer = original
    assert orphans == [exists()]


async def test_a_call_that_is_cancelled_before_it_was_sent_is_never_sent(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "MAX_IN_FLIGHT", 1)
    session = await stage.session()
    hold(stage, PutWait)
    waiting = asyncio.ensure_future(session.call(PutWait((TicketId(1),), 1_000)))
    await stage.core.seen(is_request_of(PutWait))
    doomed = [asyncio.ensure_future(session.call(ClusterState())) for _ in range(10)]
    await asyncio.sleep(0)
    for call in doomed:
        call.cancel()
    await asyncio.wait(doomed)
    hold(stage)
    await answer_held(stage)
    await waiting
    assert await session.call(exists()) == Flags(b"\x01")
    assert not any(isinstance(request.command, ClusterState) for request in stage.core.carried_out)


async def test_calls_beyond_the_queue_are_overloaded_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "MAX_IN_FLIGHT", 1)
    monkeypatch.setattr(calls_module, "MAX_QUEUED_CALLS", 3)
    session = await stage.session()
    hold(stage, Exists)
    pending = [asyncio.ensure_future(session.call(exists())) for _ in range(4)]
    await stage.core.seen(is_request_of(Exists))
    with pytest.raises(Overloaded, match="make fewer at once"):
        await session.call(exists())
    hold(stage)
    await answer_held(stage)
    assert await asyncio.gather(*pending) == [Flags(b"\x01")] * 4


async def test_a_command_too_large_for_a_frame_is_refused_and_the_session_lives_on(stage: Stage) -> None:
    session = await stage.session()
    with pytest.raises(LimitExceeded, match="ask for fewer keys"):
        await session.call(exists(bytes(MAX_FRAME_BYTES)))
    assert await session.call(exists()) == Flags(b"\x01")


async def test_one_slow_request_does_not_pin_the_replies_of_all_that_came_after_it(stage: Stage) -> None:
    session = await stage.session()
    hold(stage, PutWait)
    slow = asyncio.ensure_future(session.call(PutWait((TicketId(1),), 30_000)))
    await stage.core.seen(is_request_of(PutWait))
    for _ in range(2_000):
        await session.call(exists())
    assert len(stage.core.sessions[session.session_id].kept) <= 2
    hold(stage)
    await answer_held(stage)
    assert isinstance(await slow, Counted)


async def test_instructions_reach_the_owner_and_a_callback_that_fails_harms_nobody(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    instructions: asyncio.Queue[Instruction] = asyncio.Queue()

    def receive(instruction: Instruction) -> None:
        instructions.put_nowait(instruction)
        raise RuntimeError("the owner's bug")

    session = await stage.session(on_instruction=receive)

    def on_tick(now: int):
        stage.core.deadline = None
        effects = stage.core.answer_held()
        effects.instructions.append((session.session_id, DropSegment(SegmentId(3))))
        return effects

    stage.core.on_tick = on_tick
    await tick(stage)
    assert await instructions.get() == DropSegment(SegmentId(3))
    assert await session.call(exists()) == Flags(b"\x01")
    assert "the owner's bug" in caplog.text


async def test_a_reply_that_cannot_be_read_fails_its_call_alone(stage: Stage) -> None:
    session = await stage.session()
    stage.core.before = lambda event: None
    original = stage.core._answer

    def answer(effects, request):
        effects.replies.append((request.session, request.request_id, DropSegment(SegmentId(1))))

    stage.core._answer = answer
    with pytest.raises(ProtocolError, match="drop_segment"):
        await session.call(exists())
    stage.core._answer = original
    assert await session.call(exists()) == Flags(b"\x01")


# -- cut connections -------------------------------------------------------------------------------------------------


async def test_requests_unanswered_when_the_connection_is_cut_are_repeated_and_carried_out_once(stage: Stage) -> None:
    session = await stage.session()
    hold(stage, Exists)
    pending = [asyncio.ensure_future(session.call(exists(*[b"k"] * n))) for n in range(1, 20)]
    await stage.core.seen(lambda event: len(stage.core.held) == 18)
    back = asyncio.ensure_future(stage.core.seen(lambda event: isinstance(event, Hello)))
    stage.faults.cut()
    await back
    hold(stage)
    await answer_held(stage)
    assert await asyncio.gather(*pending) == [Flags(b"\x01" * n) for n in range(1, 20)]
    numbers = [request.request_id for request in stage.core.carried_out if request.session == session.session_id]
    assert len(numbers) == len(set(numbers)) == 19
    assert any(isinstance(event, Disconnected) for event in stage.core.events)
    assert session.session_id == 1


async def test_replies_lost_with_the_connection_come_again_and_nothing_is_carried_out_twice(stage: Stage) -> None:
    session = await stage.session()
    stage.faults.near[-1].deaf = True
    answered = asyncio.ensure_future(stage.core.seen(lambda event: len(stage.core.carried_out) == 4))
    pending = [asyncio.ensure_future(session.call(exists())) for _ in range(5)]
    await answered
    stage.faults.cut()
    assert await asyncio.gather(*pending) == [Flags(b"\x01")] * 5
    assert len([request for request in stage.core.carried_out if isinstance(request.command, Exists)]) == 5


async def test_calls_made_while_the_master_is_away_wait_for_it(stage: Stage) -> None:
    session = await stage.session()
    gone = asyncio.ensure_future(stage.core.seen(lambda event: isinstance(event, Disconnected)))
    stage.faults.cut()
    await gone
    assert await session.call(exists()) == Flags(b"\x01")
    assert await session.call(exists()) == Flags(b"\x01")


async def test_while_there_is_no_connection_a_deadline_says_so_and_why(stage: Stage) -> None:
    session = await stage.session()
    await stage.server.close()
    with pytest.raises(Unavailable, match="no connection to the master within"):
        await session.call(exists(), timeout_s=0.05)
    assert not session.connected


async def test_a_master_that_falls_silent_is_noticed_and_the_session_comes_back(stage: Stage) -> None:
    stage.core.ttl_ms = 150
    session = await stage.session()
    back = asyncio.ensure_future(stage.core.seen(lambda event: isinstance(event, Hello)))
    stage.faults.near[-1].deaf = True
    await back
    assert await session.call(exists()) == Flags(b"\x01")
    assert session.session_id == 1


# -- heartbeats ------------------------------------------------------------------------------------------------------


async def test_an_idle_session_shows_life_by_heartbeats(stage: Stage) -> None:
    stage.core.ttl_ms = 60
    session = await stage.session()
    for _ in range(5):
        await stage.core.seen(is_request_of(Heartbeat))
    assert await session.call(exists()) == Flags(b"\x01")


async def test_heartbeats_pass_a_full_window(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "MAX_IN_FLIGHT", 2)
    stage.core.ttl_ms = 60
    session = await stage.session()
    hold(stage, PutWait)
    waiting = [asyncio.ensure_future(session.call(PutWait((TicketId(n),), 1_000))) for n in range(5)]
    for _ in range(3):
        await stage.core.seen(is_request_of(Heartbeat))
    assert len(stage.core.held) == 2
    hold(stage)
    await answer_held(stage)
    assert len(await asyncio.gather(*waiting)) == 5


# -- the session's end -----------------------------------------------------------------------------------------------


async def test_an_expired_session_fails_its_calls_tells_its_owner_once_and_can_be_renewed(stage: Stage) -> None:
    reasons: list[str] = []
    session = await stage.session(on_session_lost=reasons.append)
    first = session.incarnation
    hold(stage, Exists)
    pending = [asyncio.ensure_future(session.call(exists())) for _ in range(3)]
    await stage.core.seen(lambda event: len(stage.core.held) == 2)

    def on_tick(now: int):
        stage.core.deadline = None
        stage.core.held.clear()
        return stage.core.end_session(session.session_id, "expired")

    stage.core.on_tick = on_tick
    await tick(stage)
    for call in pending:
        with pytest.raises(SessionExpired, match="is over: the session expired"):
            await call
    assert reasons == ["the session expired"]
    assert session.lost is not None
    assert session.lost.reason is Parting.EXPIRED
    with pytest.raises(SessionExpired):
        await session.call(exists())

    hold(stage)
    await session.renew_session()
    await session.renew_session()
    assert session.lost is None
    assert session.incarnation != first
    assert await session.call(exists()) == Flags(b"\x01")
    assert reasons == ["the session expired"]


async def test_a_superseded_session_ends_and_never_fights_back(stage: Stage) -> None:
    lost = asyncio.get_running_loop().create_future()
    old = await stage.session("twin", on_session_lost=lost.set_result)
    new = await stage.session("twin")
    await lost
    assert old.lost is not None
    assert old.lost.reason is Parting.SUPERSEDED
    assert old.lost.final
    with pytest.raises(SessionExpired, match="a name of its own"):
        await old.renew_session()
    with pytest.raises(SessionExpired):
        await old.call(exists())
    assert await new.call(exists()) == Flags(b"\x01")
    assert [event.name for event in stage.core.events if isinstance(event, Hello)] == ["twin", "twin"]


async def test_a_session_superseded_while_its_connection_was_cut_does_not_take_the_name_back(stage: Stage) -> None:
    lost = asyncio.get_running_loop().create_future()
    old = await stage.session("twin", on_session_lost=lost.set_result)
    gone = asyncio.ensure_future(stage.core.seen(lambda event: isinstance(event, Disconnected)))
    stage.faults.cut()
    await gone
    new = await stage.session("twin")
    assert "superseded" in await lost
    assert old.lost is not None
    assert old.lost.final
    assert await new.call(exists()) == Flags(b"\x01")
    assert new.lost is None


async def test_a_lost_session_is_said_to_be_over_once_in_one_sentence(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    lost = asyncio.get_running_loop().create_future()
    old = await stage.session("twin", on_session_lost=lost.set_result)
    await stage.session("twin")
    await lost
    with pytest.raises(SessionExpired) as caught:
        await old.call(exists())
    assert caught.value.message == "session 'twin' is over: the session superseded"
    assert [line for line in caplog.messages if "is over" in line] == [caught.value.message]


async def test_a_session_that_is_refused_while_it_reconnects_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pykvpool.transport.control")
    async with Stage("tcp://127.0.0.1:0", token="the old one") as stage:
        await stage.session(token="the old one")
        stage._token = "a new one"
        await stage.restart()
        async with asyncio.timeout(10):
            while len(tries := [each for each in caplog.records if "cannot reconnect" in each.message]) < 3:
                await asyncio.sleep(0.005)
    refusals = [each for each in tries if "the token does not match" in each.message]
    assert [each.levelname for each in refusals] == ["WARNING", *["DEBUG"] * (len(refusals) - 1)]
    assert "refused: tcp" not in caplog.text, "the kind of the error says it already"


async def test_after_a_restart_of_the_master_the_old_session_is_over_and_a_new_one_can_begin(stage: Stage) -> None:
    lost = asyncio.get_running_loop().create_future()
    session = await stage.session(on_session_lost=lost.set_result)
    hold(stage, Exists)
    pending = asyncio.ensure_future(session.call(exists()))
    await stage.core.seen(is_request_of(Exists))
    before = session.epoch
    await stage.restart()
    with pytest.raises(SessionExpired, match="has restarted"):
        await pending
    assert "has restarted" in await lost
    assert session.lost is not None
    assert session.lost.reason is Parting.RESTARTED
    await session.renew_session()
    assert session.epoch == before + 1
    assert await session.call(exists()) == Flags(b"\x01")


async def test_a_session_that_the_master_no_longer_knows_is_lost(stage: Stage) -> None:
    session = await stage.session()
    del stage.core.sessions[session.session_id]
    with pytest.raises(SessionExpired, match="no such session"):
        await session.call(exists())
    assert session.lost is not None
    await session.renew_session()
    assert await session.call(exists()) == Flags(b"\x01")


async def test_closing_says_goodbye_and_ends_what_waits(stage: Stage) -> None:
    session = await stage.session()
    hold(stage, Exists)
    pending = asyncio.ensure_future(session.call(exists()))
    await stage.core.seen(is_request_of(Exists))
    await session.close()
    with pytest.raises(Closed, match="was closed"):
        await pending
    assert isinstance(stage.core.carried_out[-1].command, Goodbye)
    assert stage.core.sessions == {}


async def test_closing_twice_and_at_once_is_harmless_and_using_it_after_is_closed(stage: Stage) -> None:
    session = await stage.session()
    await asyncio.gather(session.close(), session.close())
    await session.close()
    with pytest.raises(Closed):
        await session.call(exists())
    with pytest.raises(Closed):
        await session.renew_session()
    assert len([event for event in stage.core.events if is_request_of(Goodbye)(event)]) == 1


async def test_closing_while_the_master_is_gone_does_not_wait_for_it(stage: Stage) -> None:
    session = await stage.session()
    await stage.server.close()
    await session.close()
    assert not session.connected


async def test_a_lost_session_can_be_closed(stage: Stage) -> None:
    session = await stage.session()
    del stage.core.sessions[session.session_id]
    with pytest.raises(SessionExpired):
        await session.call(exists())
    await session.close()


async def test_the_token_is_in_no_log_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    errors: list[Exception] = []
    async with Stage("tcp://127.0.0.1:0", token="sesame-open") as stage:
        session = await stage.session()
        await session.call(exists())
        for wrong in ("sesame-shut", None):
            with pytest.raises(Exception, match="token") as caught:
                await stage.session("other", token=wrong)
            errors.append(caught.value)
    for secret in ("sesame-open", "sesame-shut"):
        assert secret not in caplog.text
        assert not any(secret in repr(error) for error in errors)
    assert "the token does not match" in caplog.text
