"""P12 and the life of tcp connections: strangers, garbage, dead and idle connections each cost only themselves."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pykvpool.fabric.tcp_client
import pykvpool.fabric.tcp_pool
import pykvpool.fabric.tcp_server
from pykvpool.errors import ConfigError, PoolError, ProtocolError, Refused, Unavailable
from pykvpool.fabric.addresses import HostPort
from pykvpool.fabric.base import Peer
from pykvpool.fabric.handshake import HEADER, ClientHandshake, body_bytes, decode, encode
from pykvpool.fabric.tcp_client import TcpClient
from pykvpool.fabric.tcp_server import TcpServer
from pykvpool.fabric.tcp_wire import RESPONSE_HEADER, Kind, decode_response_header, decode_statuses
from pykvpool.memory.segment import MemorySegment
from pykvpool.model.ids import NodeName, SegmentId
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import real_runtime
from tests.fabric.bench import BIG_BYTES, TIMEOUT_S, Backend, Bench, open_bench, replace_endpoint
from tests.fabric.conformance_moves import errors_of
from tests.fabric.relay import Relay

HELLO = ClientHandshake(Peer("stranger", 5), "", None, bytes(32)).hello


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(Backend("tcp", "tcp", on_the_wire=True), tmp_path) as opened:
        yield opened


def address_of(bench: Bench) -> HostPort:
    return HostPort.parse(bench.segment.endpoints[0])


async def talk(address: HostPort, data: bytes, *, hang_up: bool = True) -> bytes:
    """Say `data` and hang up our side; everything that the owner answers until it closes."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(data)
        if hang_up:
            writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def still_serves(bench: Bench) -> None:
    assert errors_of(await bench.client().write([bench.write(0, b"fine")], TIMEOUT_S)) == [None]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not a pykvpool data connection"),
        (HEADER.pack(b"KVPD", 99, 10), "version 99 was offered"),
        (HEADER.pack(b"KVPD", 1, 65_535), "65535 bytes"),
        (HEADER.pack(b"KVPD", 1, 3) + b"\xc1\xc1\xc1", "malformed"),
        (HELLO[:20], "middle of a handshake message"),
    ],
)
async def test_p12_a_bad_handshake_is_answered_with_the_reason_and_costs_its_connection_only(
    bench: Bench, said: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pykvpool.fabric")
    answer = await talk(address_of(bench), said)
    if answer:
        assert reason in decode(answer).message  # type: ignore[union-attr]
    assert reason in caplog.text
    await still_serves(bench)


async def test_p12_a_bad_request_is_answered_with_the_reason_and_costs_its_connection_only(bench: Bench) -> None:
    answer = await talk(address_of(bench), HELLO + b"\0" * 64)
    welcome = HEADER.size + body_bytes(answer[: HEADER.size])
    header = decode_response_header(answer[welcome : welcome + RESPONSE_HEADER.size])
    (error,) = decode_statuses(header, answer[welcome + RESPONSE_HEADER.size :])
    assert header.kind is Kind.FAREWELL
    assert isinstance(error, ProtocolError)
    await still_serves(bench)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), greeted=st.booleans())
def test_p12_random_bytes_never_harm_an_owner(data: bytes, greeted: bool) -> None:
    async def scenario() -> None:
        runtime = real_runtime()
        server = TcpServer(runtime)
        await server.start()
        memory = MemorySegment(4096, runtime)
        server.export(memory)
        await talk(HostPort.parse(server.endpoint), (HELLO if greeted else b"") + data)
        client = TcpClient(Peer("fine", 1), runtime)
        segment = SegmentDescriptor(SegmentId(1), memory.generation, NodeName("n"), 4096, (server.endpoint,))
        bench_like = Bench(None, server, memory, segment, runtime, None, None)  # type: ignore[arg-type]
        assert errors_of(await client.write([bench_like.write(0, b"fine")], TIMEOUT_S)) == [None]
        assert not any(memory.view[4:])
        await client.close()
        await server.close()
        memory.close()
        runtime.offload.close()

    asyncio.run(scenario())


async def test_a_silent_stranger_is_hung_up_on_after_the_handshake_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pykvpool.fabric.tcp_server, "HANDSHAKE_S", 0.05)
    await talk(address_of(bench), HELLO[:5], hang_up=False)


async def test_an_owner_that_never_answers_costs_a_bounded_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pykvpool.fabric.tcp_pool, "CONNECT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        segment = replace_endpoint(bench.segment, HostPort("127.0.0.1", silent.getsockname()[1]).endpoint)
        (outcome,) = await bench.client().read([bench.read(0, bytearray(1), segment=segment)], TIMEOUT_S)
    assert isinstance(outcome.error, Unavailable)
    assert segment.endpoints[0] in outcome.error.message


async def test_an_owner_that_hangs_in_the_middle_costs_a_bounded_time_and_its_write_is_not_settled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pykvpool.fabric.tcp_client, "STALL_S", 0.05)
    client, segment, hold = await bench.held_client(Peer("writer", 1))
    (outcome,) = await client.write([bench.write(0, bytearray(BIG_BYTES), segment=segment)], TIMEOUT_S)
    assert isinstance(outcome.error, Unavailable)
    assert "hangs" in outcome.error.message
    assert not outcome.settled
    (outcome,) = await client.read([bench.read(0, bytearray(BIG_BYTES), segment=segment)], TIMEOUT_S)
    assert isinstance(outcome.error, Unavailable)
    hold.release()


@pytest.mark.parametrize(("ours", "theirs"), [("right", "wrong"), (None, "right"), ("right", None)])
async def test_both_ends_learn_that_tokens_do_not_match_and_neither_tells_its_token(
    ours: str | None, theirs: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = real_runtime()
    server = TcpServer(runtime, token=theirs, cluster="prod")
    await server.start()
    memory = MemorySegment(4096, runtime)
    segment = SegmentDescriptor(SegmentId(1), memory.generation, NodeName("n"), 4096, (server.export(memory),))
    client = TcpClient(Peer("peer", 1), runtime, token=ours)
    bench_like = Bench(None, server, memory, segment, runtime, None, None)  # type: ignore[arg-type]
    (outcome,) = await client.write([bench_like.write(0, b"no")], TIMEOUT_S)
    assert isinstance(outcome.error, Refused)
    assert "token" in outcome.error.message
    await client.close()
    while server.connections:  # until the owner has heard what we said last
        await asyncio.sleep(0)
    await server.close()
    assert "token" in caplog.text
    for secret in filter(None, (ours, theirs)):
        assert secret not in caplog.text + outcome.error.message + repr(vars(outcome.error))
    memory.close()
    runtime.offload.close()


async def test_nobody_listening_is_unavailable_and_named(bench: Bench) -> None:
    endpoint = bench.segment.endpoints[0]
    await bench.server.close()
    (outcome,) = await bench.client().write([bench.write(0, b"abc")], TIMEOUT_S)
    assert isinstance(outcome.error, Unavailable)
    assert endpoint in outcome.error.message
    assert outcome.settled


async def test_an_idle_connection_that_the_owner_closed_is_replaced_without_anybody_noticing(bench: Bench) -> None:
    peer = Peer("peer", 4)
    client = bench.client(peer)
    for _ in range(3):
        assert errors_of(await client.write([bench.write(0, b"abc")], TIMEOUT_S)) == [None]
        await bench.server.fence(peer.name, peer.incarnation, bench.segment.generation, ban=False)


async def test_a_kept_connection_that_turns_out_dead_is_tried_once_more_for_what_had_not_begun(bench: Bench) -> None:
    relay = await Relay.open(bench.segment.endpoints[0], hold_after_bytes=1 << 40)
    segment = replace_endpoint(bench.segment, relay.endpoint)
    client = bench.client()
    target = bytearray(3)
    assert errors_of(await client.write([bench.write(0, b"abc", segment=segment)], TIMEOUT_S)) == [None]
    relay.cut()  # the client's side still looks open until the reset arrives, during the next call
    assert errors_of(await client.read([bench.read(0, target, segment=segment)], TIMEOUT_S)) == [None]
    assert target == b"abc"
    await relay.close()


async def test_p2_a_write_torn_by_a_dying_host_is_not_settled_and_is_not_sent_again(bench: Bench) -> None:
    client, segment, relay = await bench.held_client(Peer("writer", 7))
    writing = asyncio.ensure_future(client.write([bench.write(0, bytes(BIG_BYTES), segment=segment)], TIMEOUT_S))
    await relay.reached()
    relay.cut()  # type: ignore[attr-defined]
    (outcome,) = await writing
    assert isinstance(outcome.error, Unavailable)
    assert not outcome.settled


async def test_p2_a_write_torn_on_a_kept_connection_is_not_sent_again_either(bench: Bench) -> None:
    client, segment, relay = await bench.held_client(Peer("writer", 7))
    assert errors_of(await client.write([bench.write(0, b"abc", segment=segment)], TIMEOUT_S)) == [None]
    assert relay.connections == 1  # type: ignore[attr-defined]
    writing = asyncio.ensure_future(client.write([bench.write(0, bytes(BIG_BYTES), segment=segment)], TIMEOUT_S))
    await relay.reached()
    relay.cut()  # type: ignore[attr-defined]
    relay.release()
    (outcome,) = await writing
    assert isinstance(outcome.error, Unavailable)
    assert not outcome.settled
    assert relay.connections == 1, "nobody tried again"  # type: ignore[attr-defined]


async def test_a_connection_that_its_owner_ended_is_not_kept_open(bench: Bench) -> None:
    client = bench.client()
    assert errors_of(await client.write([bench.write(0, b"abc")], TIMEOUT_S)) == [None]
    (pool,) = client._pools.values()  # type: ignore[attr-defined]
    assert pool.idle == 1
    await bench.server.close()
    while pool.idle:
        await asyncio.sleep(0)


async def test_connections_are_kept_and_reused(bench: Bench) -> None:
    client = bench.client()
    for turn in range(5):
        assert errors_of(await client.write([bench.write(turn, b"a")], TIMEOUT_S)) == [None]
    assert bench.server.connections == 1  # type: ignore[attr-defined]


async def test_batches_wait_for_a_free_connection_when_all_are_in_use(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pykvpool.fabric.tcp_pool, "MAX_CONNECTIONS_PER_PEER", 2)
    client = bench.client()
    batches = [client.write([bench.write(64 * index, b"x" * 64)], TIMEOUT_S) for index in range(20)]
    assert [errors_of(outcomes) for outcomes in await asyncio.gather(*batches)] == [[None]] * 20
    assert bench.server.connections == 2  # type: ignore[attr-defined]


async def test_too_many_connections_are_refused_with_a_reason(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.client()
    assert errors_of(await first.write([bench.write(0, b"a")], TIMEOUT_S)) == [None]
    monkeypatch.setattr(pykvpool.fabric.tcp_server, "MAX_CONNECTIONS", 1)
    (outcome,) = await bench.client().write([bench.write(0, b"b")], TIMEOUT_S)
    assert outcome.error is not None
    assert outcome.error.kind == "Overloaded"
    assert errors_of(await first.write([bench.write(0, b"a")], TIMEOUT_S)) == [None]


async def test_ipv6_addresses_work() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    runtime = real_runtime()
    server = TcpServer(runtime, "[::1]:0")
    try:
        await server.start()
    except ConfigError:
        pytest.skip("no IPv6 loopback here")
    memory = MemorySegment(4096, runtime)
    segment = SegmentDescriptor(SegmentId(1), memory.generation, NodeName("n"), 4096, (server.export(memory),))
    assert segment.endpoints[0].startswith("tcp://[::1]:")
    client = TcpClient(Peer("peer", 1), runtime)
    bench_like = Bench(None, server, memory, segment, runtime, None, None)  # type: ignore[arg-type]
    assert errors_of(await client.write([bench_like.write(0, b"six")], TIMEOUT_S)) == [None]
    assert bytes(memory.view[:3]) == b"six"
    await client.close()
    await server.close()
    memory.close()
    runtime.offload.close()


async def test_a_taken_port_a_bad_address_and_a_bare_wildcard_are_config_errors_that_say_what_to_do() -> None:
    runtime = real_runtime()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="--data-listen"):
            await TcpServer(runtime, f"127.0.0.1:{port}").start()
    with pytest.raises(ConfigError, match="--advertise"):
        await TcpServer(runtime, "0.0.0.0:0").start()
    with pytest.raises(ConfigError, match="unknown"):
        await TcpServer(runtime, "no-such-host.invalid:1").start()
    with pytest.raises(PoolError):
        TcpServer(runtime, "::1:7001")


@pytest.mark.parametrize(
    ("advertise", "host"),
    [("node-7", "node-7"), ("10.0.0.7:99", "10.0.0.7"), ("[fe80::1]", "fe80::1"), ("fe80::1", "fe80::1")],
)
async def test_descriptors_carry_the_advertised_address(advertise: str, host: str) -> None:
    server = TcpServer(real_runtime(), "0.0.0.0:0", advertise=advertise)
    await server.start()
    found = HostPort.parse(server.endpoint)
    assert found.host == host
    assert (found.port == 99) == advertise.endswith(":99")
    await server.close()


def test_a_refusal_is_a_message_of_the_protocol() -> None:
    assert decode(HELLO) == decode(encode(decode(HELLO)))
