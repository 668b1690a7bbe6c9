"""The small parts of the fabrics, each on its own: the put guard, cursors, tasks, addresses, the registry."""

from __future__ import annotations

import asyncio

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import ConfigError, InternalError, InvalidArgument
from pykvpool.fabric.addresses import HostPort
from pykvpool.fabric.base import Peer
from pykvpool.fabric.cursor import IOV_MAX, Cursor
from pykvpool.fabric.exports import MAX_BANS, ExportTable, PutGuard
from pykvpool.fabric.registry import ClientSettings, ServerSettings, build_client, build_server, export_over
from pykvpool.fabric.tasks import run_all
from pykvpool.memory.segment import MemorySegment
from pykvpool.model.ids import PutId
from pykvpool.runtime import real_runtime


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9))))
def test_p2_a_put_is_admitted_exactly_if_no_newer_one_was_seen_at_its_offset(writes: list[tuple[int, int]]) -> None:
    guard = PutGuard()
    newest: dict[int, int] = {}
    for offset, put_id in writes:
        assert guard.admit(offset, PutId(put_id)) == (put_id >= newest.get(offset, 0))
        newest[offset] = max(put_id, newest.get(offset, 0))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60))
def test_p2_a_guard_that_forgets_offsets_never_admits_what_it_should_refuse(writes: list[tuple[int, int]]) -> None:
    guard = PutGuard(limit=3)
    newest: dict[int, int] = {}
    for offset, put_id in writes:
        if guard.admit(offset, PutId(put_id)):
            assert put_id >= newest.get(offset, 0)
        newest[offset] = max(put_id, newest.get(offset, 0))


def test_bans_are_bounded_and_the_oldest_are_forgotten() -> None:
    table = ExportTable()
    for incarnation in range(MAX_BANS + 1):
        table.ban("peer", incarnation)
    assert not table.is_banned(Peer("peer", 0))
    assert table.is_banned(Peer("peer", 1))
    assert table.is_banned(Peer("peer", MAX_BANS))


def test_a_generation_is_exported_once() -> None:
    memory = MemorySegment(4096, real_runtime())
    table = ExportTable()
    table.add(memory)
    with pytest.raises(InternalError):
        table.add(memory)
    memory.close()


@given(
    st.lists(st.binary(max_size=40), max_size=10),
    st.integers(1, 30),
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
)
def test_a_cursor_offers_every_byte_once_in_order_and_sums_what_passed(
    pieces: list[bytes], window_bytes: int, steps: list[int]
) -> None:
    cursor = Cursor()
    running = xxhash.xxh3_64()
    cursor.add(map(memoryview, pieces), running)
    passed = b""
    turn = 0
    while not cursor.finished:
        window = b"".join(cursor.window(window_bytes))
        assert 0 < len(window) <= window_bytes
        count = min(len(window), steps[turn % len(steps)])
        passed += window[:count]
        cursor.advance(count)
        turn += 1
        assert cursor.done_bytes == len(passed)
        assert running.intdigest() == xxhash.xxh3_64_intdigest(passed)
    assert passed == b"".join(pieces)
    assert cursor.window(window_bytes) == []


def test_a_window_holds_no_more_buffers_than_a_system_call_takes() -> None:
    cursor = Cursor()
    cursor.add([memoryview(b"x")] * (IOV_MAX + 5))
    assert len(cursor.window(1 << 20)) == IOV_MAX


async def test_an_error_of_one_piece_surfaces_when_all_have_ended() -> None:
    ended = []

    async def piece(number: int) -> int:
        for _ in range(number):
            await asyncio.sleep(0)
        ended.append(number)
        if number == 0:
            raise InvalidArgument("zero")
        return number

    with pytest.raises(InvalidArgument):
        await run_all([piece(0), piece(3)])
    assert ended == [0, 3]
    assert await run_all([piece(2), piece(1)]) == [2, 1]
    assert await run_all([]) == []


@pytest.mark.parametrize(
    ("text", "host", "port", "endpoint"),
    [
        ("127.0.0.1:7001", "127.0.0.1", 7001, "tcp://127.0.0.1:7001"),
        ("tcp://node-1.example:0", "node-1.example", 0, "tcp://node-1.example:0"),
        ("[::1]:7001", "::1", 7001, "tcp://[::1]:7001"),
        ("tcp://[fe80::2]:9", "fe80::2", 9, "tcp://[fe80::2]:9"),
    ],
)
def test_addresses_are_read_and_written(text: str, host: str, port: int, endpoint: str) -> None:
    address = HostPort.parse(text)
    assert address == HostPort(host, port)
    assert address.endpoint == endpoint
    assert HostPort.parse(endpoint) == address


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:x", "::1:1", "host:65536", "udp://host:1", "[::1]"])
def test_an_address_that_cannot_be_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidArgument):
        HostPort.parse(text)


def test_asking_for_a_fabric_that_is_not_there_says_what_is_missing() -> None:
    runtime = real_runtime()
    settings = ClientSettings(Peer("p", 1), runtime)
    with pytest.raises(ConfigError, match="did you mean 'tcp'"):
        build_client("tpc", settings)
    with pytest.raises(ConfigError, match="known are inproc, shm, tcp, rdma"):
        build_server("carrier-pigeon", ServerSettings(runtime))
    with pytest.raises(ConfigError, match="--shm-dir"):
        build_server("shm", ServerSettings(runtime))


def test_settings_never_show_the_token() -> None:
    runtime = real_runtime()
    assert "sesame" not in repr(ClientSettings(Peer("p", 1), runtime, token="sesame"))
    assert "sesame" not in repr(ServerSettings(runtime, token="sesame"))


def test_memory_that_one_fabric_cannot_offer_is_offered_on_the_others() -> None:
    runtime = real_runtime()
    memory = MemorySegment(4096, runtime, shareable=False)
    servers = [
        build_server("inproc", ServerSettings(runtime)),
        build_server("shm", ServerSettings(runtime, shm_path="/x")),
    ]
    (endpoint,) = export_over(servers, memory)
    assert endpoint.startswith("inproc://")
    asyncio.run(servers[0].close())
    memory.close()
