"""P12 and the life of shm connections: strangers, garbage, stale sockets, read-only maps, and processes that die."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

import pykvpool.fabric.shm_client
from pykvpool.errors import ConfigError, NotSupported, PoolError, Refused, Unavailable
from pykvpool.fabric.addresses import ShmAddress, host_id
from pykvpool.fabric.base import Peer
from pykvpool.fabric.handshake import ClientHandshake, decode
from pykvpool.fabric.packet_socket import PacketSocket
from pykvpool.fabric.shm_client import ShmClient
from pykvpool.fabric.shm_server import ShmServer
from pykvpool.fabric.shm_wire import Mapped, MapRequest, Unmapped
from pykvpool.fabric.shm_wire import decode as decode_message
from pykvpool.fabric.shm_wire import encode as encode_message
from pykvpool.memory.segment import MemorySegment
from pykvpool.model.ids import Generation
from pykvpool.runtime import real_runtime
from tests.fabric.bench import SEGMENT_BYTES, TIMEOUT_S, Backend, Bench, open_bench, replace_endpoint
from tests.fabric.conformance_moves import errors_of

HELLO = ClientHandshake(Peer("stranger", 5), "", None, bytes(32)).hello
READER_HELLO = ClientHandshake(Peer("reader", 6, writable=False), "", None, bytes(32)).hello


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(Backend("shm", "shm"), tmp_path) as opened:
        yield opened


async def connect(path: str) -> PacketSocket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, path)
    return PacketSocket(sock, asyncio.get_running_loop())


async def last_words(packets: PacketSocket) -> list[bytes]:
    """All packets until the owner hangs up."""
    said = []
    try:
        while True:
            packet = await packets.receive()
            packet.close_descriptors()
            said.append(packet.data)
    except PoolError:
        packets.close(Unavailable("done"))
        return said


def path_of(bench: Bench) -> str:
    return ShmAddress.parse(bench.segment.endpoints[0]).path


@pytest.mark.parametrize(
    ("said", "reason"), [(b"hello?", "truncated"), (b"x" * 4097, "4096 bytes"), (HELLO[:-1], "as long as its header")]
)
async def test_p12_a_bad_handshake_is_answered_with_the_reason(bench: Bench, said: bytes, reason: str) -> None:
    packets = await connect(path_of(bench))
    packets.send(said)
    (answer,) = await last_words(packets)
    assert reason in decode(answer).message  # type: ignore[union-attr]
    assert errors_of(await bench.client().write([bench.write(0, b"fine")], TIMEOUT_S)) == [None]


@settings(max_examples=40, deadline=None)
@given(first=st.binary(min_size=1, max_size=200), greeted=st.booleans())
def test_p12_random_packets_never_harm_an_owner(first: bytes, greeted: bool) -> None:
    async def scenario(folder: Path) -> None:
        async with open_bench(Backend("shm", "shm"), folder) as bench:
            packets = await connect(path_of(bench))
            if greeted:
                packets.send(HELLO)
                await packets.receive()
            packets.send(first)
            packets.send(encode_message(MapRequest(Generation(1))))
            client = bench.client()
            assert errors_of(await client.write([bench.write(0, b"fine")], TIMEOUT_S)) == [None]
            packets.close(Unavailable("done"))

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))


async def test_the_kernel_itself_keeps_a_reader_from_writing(bench: Bench) -> None:
    packets = await connect(path_of(bench))
    packets.send(READER_HELLO)
    await packets.receive()
    packets.send(encode_message(MapRequest(bench.segment.generation)))
    packet = await packets.receive()
    assert isinstance(decode_message(packet.data), Mapped)
    memory, control = packet.descriptors
    for descriptor, size in ((memory, SEGMENT_BYTES), (control, 4096)):
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, size)
        mmap.mmap(descriptor, size, access=mmap.ACCESS_READ).close()
    packet.close_descriptors()
    packets.close(Unavailable("done"))


async def test_a_writer_cannot_touch_the_word_that_ends_a_generation(bench: Bench) -> None:
    packets = await connect(path_of(bench))
    packets.send(HELLO)
    await packets.receive()
    packets.send(encode_message(MapRequest(bench.segment.generation)))
    packet = await packets.receive()
    with pytest.raises(PermissionError):
        mmap.mmap(packet.descriptors[1], 4096)
    packet.close_descriptors()
    packets.close(Unavailable("done"))


async def test_p2_a_hung_up_socket_is_no_evidence_but_a_late_word_or_the_end_of_the_process_is(bench: Bench) -> None:
    packets = await connect(path_of(bench))
    packets.send(HELLO)
    await packets.receive()
    packets.send(encode_message(MapRequest(bench.segment.generation)))
    (await packets.receive()).close_descriptors()
    fence = asyncio.ensure_future(bench.server.fence("stranger", 5, bench.segment.generation, ban=False))
    await packets.receive()  # the owner asks us to unmap
    assert not fence.done()
    packets.send(encode_message(Unmapped(bench.segment.generation)))
    await fence
    packets.send(encode_message(MapRequest(bench.segment.generation)))
    (await packets.receive()).close_descriptors()
    packets.close(Unavailable("gone without a goodbye"))
    client = bench.client()  # a round trip through the owner: it has seen us hang up by then
    assert errors_of(await client.write([bench.write(0, b"abc")], TIMEOUT_S)) == [None]
    fence = asyncio.ensure_future(bench.server.fence("stranger", 5, bench.segment.generation, ban=False))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not fence.done(), "this process lives and may hold the map"
    fence.cancel()


_WRITER_PROCESS = """
import asyncio, sys
from pykvpool.fabric.base import Peer, Write
from pykvpool.fabric.shm_client import ShmClient
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import real_runtime

async def main():
    segment = SegmentDescriptor(1, int(sys.argv[1]), "owner", int(sys.argv[2]), (sys.argv[3],))
    client = ShmClient(Peer("doomed", 13), real_runtime())
    (outcome,) = await client.write([Write(segment, 0, 3, [memoryview(b"abc")], 1)], 20.0)
    print(outcome.error, flush=True)
    import os, signal
    os.kill(os.getpid(), signal.SIGSTOP)

asyncio.run(main())
"""


async def test_p2_the_fence_of_a_stuck_writer_returns_when_its_process_is_gone_and_not_before(bench: Bench) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _WRITER_PROCESS,
        str(bench.segment.generation),
        str(SEGMENT_BYTES),
        bench.segment.endpoints[0],
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"None\n"
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert bytes(bench.memory.view[:3]) == b"abc"
    fence = asyncio.ensure_future(bench.server.fence("doomed", 13, bench.segment.generation, ban=True))
    # The owner goes on serving others while the stopped process answers nothing.
    client = bench.client()
    for _ in range(20):
        assert errors_of(await client.write([bench.write(8, b"def")], TIMEOUT_S)) == [None]
    assert not fence.done()
    process.kill()
    await fence
    await process.wait()


async def test_a_read_only_view_that_is_held_does_not_stop_a_fence(bench: Bench) -> None:
    client = bench.client(Peer("viewer", 3))
    view = await client.map_view(bench.segment, 0, 8)  # type: ignore[attr-defined]
    await bench.server.fence("viewer", 3, bench.segment.generation, ban=False)
    assert bytes(view) == bytes(8)
    view.release()


async def test_a_closed_client_counts_as_gone_at_once(bench: Bench) -> None:
    client = bench.client(Peer("leaving", 4))
    assert errors_of(await client.write([bench.write(0, b"abc")], TIMEOUT_S)) == [None]
    await client.close()
    await bench.server.fence("leaving", 4, bench.segment.generation, ban=True)


async def test_an_owner_that_never_answers_costs_a_bounded_time(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pykvpool.fabric.shm_client, "ANSWER_S", 0.05)
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(path))
        silent.listen()
        segment = replace_endpoint(bench.segment, ShmAddress(host_id(), str(path)).endpoint)
        client = bench.client()
        (outcome,) = await client.read([bench.read(0, bytearray(1), segment=segment)], TIMEOUT_S)
        assert isinstance(outcome.error, Unavailable)
        with pytest.raises(Unavailable):
            await client.map_view(segment, 0, 1)


async def test_another_host_is_never_tried(bench: Bench) -> None:
    elsewhere = replace_endpoint(bench.segment, ShmAddress("0123456789abcdef", path_of(bench)).endpoint)
    client = bench.client()
    assert client.reaches(elsewhere) is None
    (outcome,) = await client.read([bench.read(0, bytearray(1), segment=elsewhere)], TIMEOUT_S)
    assert isinstance(outcome.error, Unavailable)


async def test_a_token_that_does_not_match_is_refused_by_name(tmp_path: Path) -> None:
    async with open_bench(Backend("shm", "shm", token="right"), tmp_path) as bench:
        client = ShmClient(Peer("peer", 1), bench.runtime, token="wrong")
        (outcome,) = await client.write([bench.write(0, b"no")], TIMEOUT_S)
        assert isinstance(outcome.error, Refused)
        assert "token" in outcome.error.message
        await client.close()


async def test_a_stale_socket_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    runtime = real_runtime()
    path = tmp_path / "data.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    server = ShmServer(runtime, str(path))
    await server.start()
    with pytest.raises(ConfigError, match="another process listens"):
        await ShmServer(runtime, str(path)).start()
    assert path.stat().st_mode & 0o777 == 0o600
    await server.close()
    assert not path.exists()


async def test_a_path_that_cannot_be_is_a_config_error(tmp_path: Path) -> None:
    runtime = real_runtime()
    (tmp_path / "file").write_text("")
    for path in ("relative.sock", "/" + "x" * 107):
        with pytest.raises(ConfigError):
            ShmServer(runtime, path)
    with pytest.raises(ConfigError, match="--shm-dir"):
        await ShmServer(runtime, str(tmp_path / "file" / "data.sock")).start()


async def test_memory_without_a_descriptor_is_not_offered(bench: Bench) -> None:
    memory = MemorySegment(4096, bench.runtime, shareable=False)
    with pytest.raises(NotSupported):
        bench.server.export(memory)
    memory.close()


def test_addresses_round_trip_and_others_are_refused() -> None:
    address = ShmAddress(host_id(), "/run/pykvpool/data.sock")
    assert ShmAddress.parse(address.endpoint) == address
    for text in ("tcp://a/b", "shm://", "shm://host", "shm:///path"):
        with pytest.raises(PoolError):
            ShmAddress.parse(text)


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_arrives_while_its_owner_closes_is_closed_too(bench: Bench, turns: int) -> None:
    packets = await connect(path_of(bench))
    for _ in range(turns):
        await asyncio.sleep(0)
    await bench.server.close()
    assert await last_words(packets) == []
    gc.collect()  # a socket that nobody closed would be a warning, and so a failure, here
