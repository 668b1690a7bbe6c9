"""The lines of the rdma fabric: what strangers may say on them, and what their end means."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pykvpool.fabric.rdma.server
from pykvpool.errors import ProtocolError, Refused, Unavailable
from pykvpool.fabric.addresses import HostPort
from pykvpool.fabric.base import Peer
from pykvpool.fabric.handshake import NONCE_BYTES, ClientHandshake
from pykvpool.fabric.rdma import wire
from pykvpool.fabric.rdma.owner_session import OwnerSession
from pykvpool.fabric.rdma.server import RdmaServer
from pykvpool.fabric.rdma.settings import RdmaSettings
from pykvpool.model.ids import Generation
from pykvpool.runtime import real_runtime
from tests.fabric.rdma_stage import MIB, Stage, stage, turns, until

HELLO = ClientHandshake(Peer("stranger", 5), "", None, b"n" * NONCE_BYTES).hello


async def talk(here: Stage, data: bytes) -> bytes:
    """Say something to the owner, hang up our half, and hear all it has to say."""
    address = HostPort.parse(here.server.endpoint, "rdma")
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(data)
    writer.write_eof()
    try:
        async with asyncio.timeout(5.0):
            answer = await reader.read()
    except ConnectionError:
        answer = b""
    writer.close()
    return answer


CONNECT = wire.Connect(1, Generation(1), "far0:1", 3, 17, 5, bytes(16), 0, 4096, 1)


@pytest.mark.parametrize(
    "message",
    [
        wire.Open(1, Generation(99)),
        CONNECT,
        wire.Disconnect(1, 12345),
        wire.Heard(4),
        wire.Connected(1, 2, 3, 4),
        wire.Ended(1, (1, 2), False, -100, "gone"),
    ],
)
async def test_p12_a_message_out_of_place_costs_its_own_line_at_most(message: wire.Said) -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await talk(here, HELLO + wire.encode(message))
        assert not here.far[0].pairs
        assert (await here.write(0, b"fine")).error is None


@pytest.mark.parametrize(
    "changes",
    [{"gid": b"short"}, {"mtu_bytes": 1000}, {"number": 1 << 24}, {"psn": -1}, {"read_depth": 0}, {"gid_index": 77}],
)
async def test_p12_a_queue_pair_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        values = {name: getattr(CONNECT, name) for name in CONNECT.__struct_fields__} | changes
        values["generation"] = here.memory.generation
        await talk(here, HELLO + wire.encode(wire.Connect(**values)))
        assert not here.far[0].calls["queue_pair"], "no card was asked"
        assert (await here.write(0, b"fine")).error is None


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), greeted=st.booleans(), framed=st.booleans())
def test_p12_random_bytes_never_harm_an_owner(data: bytes, greeted: bool, framed: bool) -> None:
    async def scenario() -> None:
        async with stage(near=("near0",), far=("far0",), size_bytes=4096) as here:
            head = wire.LENGTH.pack(len(data)) if framed else b""
            await talk(here, (HELLO if greeted else b"") + head + data)
            assert (await here.write(0, b"fine")).error is None
            assert not any(here.memory.view[4:])

    asyncio.run(scenario())


@given(st.binary(max_size=100))
def test_a_body_is_a_message_or_an_error_of_ours(body: bytes) -> None:
    try:
        wire.decode(body)
    except ProtocolError:
        pass
    else:
        assert wire.encode(wire.decode(body))


def test_a_length_beyond_the_limit_is_refused_before_anything_is_read() -> None:
    for length in (0, wire.MAX_BODY_BYTES + 1):
        with pytest.raises(ProtocolError, match=str(length)):
            wire.body_bytes(wire.LENGTH.pack(length))


async def test_a_silent_stranger_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pykvpool.fabric.rdma.server, "HANDSHAKE_S", 0.05)
    async with stage(near=("near0",), far=("far0",)) as here:
        address = HostPort.parse(here.server.endpoint, "rdma")
        reader, writer = await asyncio.open_connection(address.host, address.port)
        async with asyncio.timeout(5.0):
            assert not await reader.read()
        writer.close()


async def test_more_lines_than_allowed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pykvpool.fabric.rdma.server, "MAX_LINES", 1)
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        (outcome,) = await here.another(Peer("second", 2)).read([here.to_read(0, bytearray(1))], 5.0)
        assert isinstance(outcome.error, Unavailable)
        assert await here.read(0, 1) == bytes(1)


async def test_a_peer_that_goes_takes_its_queue_pairs_with_it() -> None:
    async with stage(near=("near0",), far=("far0",), queue_pairs=3) as here:
        await here.connected()
        assert len(here.far[0].pairs) == 3
        await here.client.close()
        await until(lambda: not here.far[0].pairs)


async def test_a_line_that_breaks_ends_what_is_under_way_and_the_next_call_opens_another() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        here.hold()
        writing = asyncio.ensure_future(here.write(0, bytes(MIB)))
        await until(lambda: here.under_way)
        (session,) = here.client._sessions.values()
        session._line.end(Unavailable("the cable was cut"))
        outcome = await writing
        assert isinstance(outcome.error, Unavailable)
        assert not outcome.settled, "who knows what the owner's card has taken"
        here.release()
        assert (await here.write(0, b"again")).error is None


async def test_an_owner_that_does_not_answer_is_unavailable_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pykvpool.fabric.rdma.session.ANSWER_S", 0.05)
    async with stage(near=("near0",), far=("far0",)) as here:
        strangers: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda _, writer: strangers.append(writer), "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        here.segment = type(here.segment)(
            here.segment.segment, here.segment.generation, here.segment.node, here.segment.size_bytes,
            (f"rdma://127.0.0.1:{port}",),
        )  # fmt: skip
        outcome = await here.write(0, b"x")
        assert isinstance(outcome.error, Unavailable)
        assert "no answer within" in outcome.error.message
        silent.close()
        for writer in strangers:
            writer.close()


async def test_an_owner_that_greets_and_says_no_more_is_unavailable_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pykvpool.fabric.rdma.session.ANSWER_S", 0.05)
    async with stage(near=("near0",), far=("far0",)) as here:

        async def silent(self: OwnerSession) -> None:
            while True:
                await self._line.hear()

        with monkeypatch.context() as patch:
            patch.setattr(OwnerSession, "serve", silent)
            async with asyncio.timeout(10):
                outcome = await here.write(0, b"x")
        assert isinstance(outcome.error, Unavailable)
        assert "no answer within 0.05 s" in outcome.error.message


async def test_an_impatient_caller_leaves_what_it_began_to_the_next() -> None:
    """Where connecting takes longer than a call may, no call would ever succeed if each began anew."""
    for patience in range(1, 40):
        async with stage(near=("near0",), far=("far0",)) as here:
            writing = asyncio.ensure_future(here.write(0, b"in a hurry"))
            await turns(patience)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            assert (await here.write(0, b"no hurry")).error is None
            assert here.near[0].calls["queue_pair"] == 1


async def test_closing_ends_a_connection_in_the_making_that_nobody_waits_for() -> None:
    for patience in range(1, 40, 3):
        async with stage(near=("near0",), far=("far0",)) as here:
            writing = asyncio.ensure_future(here.write(0, b"in a hurry"))
            await turns(patience)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await here.client.close()


async def test_p12_a_peer_that_asks_and_does_not_listen_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pykvpool.fabric.rdma.line.MAX_UNSENT_BYTES", 100_000)
    async with stage(near=("near0",), far=("far0",)) as here:
        monkeypatch.setattr("pykvpool.fabric.rdma.line.MAX_UNSENT", 1 << 30)
        address = HostPort.parse(here.server.endpoint, "rdma")
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1)
        writer.write(HELLO)
        ask = wire.encode(wire.Open(1, here.memory.generation)) * 1000
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(20):
                while not reader.at_eof():
                    writer.write(ask)
                    await writer.drain()
        writer.close()
        await until(lambda: not here.server._lines)
        assert (await here.write(0, b"fine")).error is None


@pytest.mark.parametrize(("ours", "theirs"), [("right", "wrong"), (None, "right"), ("right", None)])
async def test_tokens_that_do_not_match_open_no_line(ours: str | None, theirs: str | None) -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        server = RdmaServer(real_runtime(), token=theirs, settings=RdmaSettings(("far0",), verbs=here.verbs))
        await server.start()
        client = here.another(Peer("stranger", 3), token=ours)
        here.segment = type(here.segment)(
            here.segment.segment, here.segment.generation, here.segment.node, here.segment.size_bytes,
            (server.endpoint,),
        )  # fmt: skip
        (outcome,) = await client.read([here.to_read(0, bytearray(1))], 5.0)
        assert isinstance(outcome.error, Refused)
        await server.close()


async def test_a_fence_does_not_wait_long_for_a_peer_that_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pykvpool.fabric.rdma.server, "HEARD_S", 0.05)
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        (session,) = here.client._sessions.values()
        session._reader.cancel()  # it is stopped: its card goes on, its process does not
        session._listeners.clear()
        session._line._stream.abort = lambda failure: None  # type: ignore[method-assign]
        await turns()
        await here.server.fence("peer", 1, here.segment.generation, ban=False)
        assert not here.far[0].pairs
        del session._line._stream.abort
        session._line.end(Unavailable("it goes on"))
