"""Addresses: what is right is understood, what is wrong is answered with how it should be."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from pykvpool.errors import ConfigError, InvalidArgument, NotSupported, Unavailable
from pykvpool.transport.address import DEFAULT_MASTER_PORT, parse_host_port, split_scheme
from pykvpool.transport.port_holder import who_listens_on
from pykvpool.transport.registry import default_transports, standard_transports
from tests.transport.streams import Place


@pytest.mark.parametrize(
    ("rest", "host", "port"),
    [
        ("127.0.0.1:7001", "127.0.0.1", 7001),
        ("master.example", "master.example", DEFAULT_MASTER_PORT),
        ("[::1]:7001", "::1", 7001),
        ("[fe80::1%eth0]", "fe80::1%eth0", DEFAULT_MASTER_PORT),
        ("localhost:0", "localhost", 0),
        ("0.0.0.0:65535", "0.0.0.0", 65_535),
    ],
)
def test_hosts_and_ports_are_understood(rest: str, host: str, port: int) -> None:
    place = parse_host_port(rest)
    assert place == (host, port)
    assert parse_host_port(place.text()) == place


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:7000", "no scheme: write tcp://127.0.0.1:7000"),
        ("/run/x.sock", "no scheme: write unix:///run/x.sock"),
        ("", "no scheme: write tcp://host:port"),
        ("://x", "no scheme"),
        ("tcp://::1:7000", "needs brackets"),
        ("tcp://[::1:7000", r"tcp://\[::1\]:7000"),
        ("tcp://[::1]7000", r"tcp://\[::1\]:7000"),
        ("tcp://host:", "is no port"),
        ("tcp://host:http", "'http' is no port"),
        ("tcp://host:65536", "0 to 65535"),
        ("tcp://host:-1", "is no port"),
        ("tcp://host:²", "is no port"),
        ("tcp://:7000", "names no host"),
        ("tcp://", "names no host"),
        ("tcp://host:7000/path", "only host and port"),
        ("tcp://user@host:7000", "only host and port"),
        ("unix://relative.sock", "must be absolute"),
        ("unix:///" + "x" * 200, "at most 107 bytes"),
    ],
)
def test_a_wrong_address_is_answered_with_how_to_write_it(address: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        default_transports().check(address)


def test_an_unknown_scheme_is_answered_with_those_there_are() -> None:
    with pytest.raises(NotSupported, match="tcp://, unix://, inproc://"):
        default_transports().check("http://host:7000")


def test_a_scheme_has_one_meaning() -> None:
    registry = standard_transports()
    with pytest.raises(InvalidArgument, match="registered already"):
        registry.register("tcp", object())


def test_schemes_are_read_in_any_case() -> None:
    assert split_scheme("TCP://host:1") == ("tcp", "host:1")


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("tcp://127.0.0.1:{closed}", "connection refused"),
        ("tcp://127.0.0.1:0", "port 0"),
        ("unix://{directory}/none.sock", "no such socket file"),
        ("inproc://nobody", "nothing in this process"),
    ],
)
async def test_nobody_there_is_unavailable_with_the_reason(address: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=reason):
        await standard_transports().connect(address.format(closed=closed_port(), directory=tmp_path))


async def test_a_taken_port_names_the_process_that_holds_it() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            await standard_transports().listen(f"tcp://127.0.0.1:{port}", lambda stream: None)
    assert f"pid {os.getpid()}" in caught.value.message
    assert Path(sys.argv[0]).name in caught.value.message or "python" in caught.value.message
    assert "--listen" in caught.value.message


def test_where_proc_does_not_tell_nothing_is_claimed(tmp_path: Path) -> None:
    assert who_listens_on(1, tmp_path) == ""
    (tmp_path / "net").mkdir()
    header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = "   0: 0100007F:1B58 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n"
    (tmp_path / "net" / "tcp").write_text(header + line)
    assert who_listens_on(7_001, tmp_path) == ""
    assert who_listens_on(7_000, tmp_path) == "a process of another user holds it"


async def test_a_host_that_cannot_be_listened_on_says_why() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on tcp://192\.0\.2\.1:7000"):
        await standard_transports().listen("tcp://192.0.2.1:7000", lambda stream: None)


async def test_a_socket_file_left_by_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with Place(f"unix://{path}") as place:
        await place.pair()
    assert not path.exists()


async def test_a_socket_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    listener = await standard_transports().listen(f"unix://{path}", lambda stream: None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await listener.close()


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious.txt"
    path.write_text("do not delete")
    with pytest.raises(ConfigError, match="no socket"):
        await standard_transports().listen(f"unix://{path}", lambda stream: None)
    assert path.read_text() == "do not delete"


async def test_a_live_socket_file_names_the_process_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with Place(f"unix://{path}") as place:
        with pytest.raises(ConfigError, match=f"pid {os.getpid()}"):
            await standard_transports().listen(f"unix://{path}", lambda stream: None)
        assert path.exists()
        probe = await place.accepted.get()  # the look whether somebody is there
        assert await probe.recv() is None
        await probe.wait_closed()


async def test_a_directory_that_is_missing_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or directory"):
        await standard_transports().listen(f"unix://{tmp_path}/missing/control.sock", lambda stream: None)


async def test_closing_does_not_remove_the_file_of_a_later_listener(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    first = await standard_transports().listen(f"unix://{path}", lambda stream: None)
    path.unlink()
    async with Place(f"unix://{path}") as place:
        await first.close()
        await place.pair()
    assert not path.exists()


async def test_inproc_does_not_cross_event_loops() -> None:
    transports = standard_transports()
    listener = await transports.listen("inproc://here", lambda stream: None)
    with pytest.raises(Unavailable, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(transports.connect("inproc://here")))
    await listener.close()
