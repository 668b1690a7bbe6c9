"""What people give by mistake (an unset variable, a closed stream, odd keys) is said plainly and harms nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pykvpool
from pykvpool.client import Client
from pykvpool.errors import InvalidArgument
from tests.cli.live import Pool, command, finish, run


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "source").write_bytes(b"0123456789")
    return str(tmp_path / "source")


def test_an_empty_pattern_removes_nothing(pool: Pool, source: str) -> None:
    pool.run("put", "kept", source)
    refused = pool.run("rm", "--pattern", "", "--yes", code=2)
    assert "--all" in refused.stderr
    assert "kept" in pool.run("ls").stdout


def test_an_empty_namespace_never_means_all_of_them(pool: Pool, source: str) -> None:
    pool.run("put", "kept", source, "--namespace", "theirs")
    for arguments in (("rm", "--all", "--yes"), ("ls",)):
        refused = pool.run(*arguments, "--namespace", "", code=1)
        assert "--namespace" in refused.stderr
        assert "not empty" in refused.stderr
    assert "kept" in pool.run("ls", "--namespace", "theirs").stdout


async def test_a_client_has_a_namespace_of_its_own(address: str) -> None:
    with pytest.raises(InvalidArgument, match="namespace is empty"):
        await Client.connect(address, namespace="")


def test_what_ls_shows_names_one_key_only(pool: Pool, source: str) -> None:
    with pykvpool.connect(pool.address) as client:
        client.put("0xfe", b"text")
        client.put(b"\xfe", b"binary")
        shown = [json.loads(line)["key"] for line in pool.run("ls", "--json").stdout.splitlines()]
        assert len(set(shown)) == 2
        pool.run("rm", "0xfe")
        assert client.get("0xfe") == b"text"


@pytest.mark.parametrize("key", ["[/x]", "[red]x[/red]", ":smile:"])
def test_a_key_with_brackets_is_shown_as_it_is(pool: Pool, source: str, key: str) -> None:
    pool.run("put", key, source)
    assert key in pool.run("stat", key).stdout


def test_control_characters_of_a_key_never_reach_the_terminal(pool: Pool, source: str, tmp_path: Path) -> None:
    key = "a\x1b[31m\nb"
    said = [
        pool.run("put", key, source).output,
        pool.run("get", key, "-o", str(tmp_path / "out")).output,
        pool.run("stat", key).output,
        pool.run("rm", key).output,
        pool.run("rm", key, code=1).output,
        pool.run("stat", key, code=1).output,
    ]
    assert not any("\x1b" in text or "a\n" in text for text in said)
    assert all("0x611b5b33316d0a62" in text for text in [*said[:3], *said[4:]])


def closed(descriptor: int, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """A command whose standard stream `descriptor` is closed."""
    return subprocess.run(
        [sys.executable, "-m", "pykvpool", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        preexec_fn=lambda: os.close(descriptor),
        check=False,
    )


def test_a_closed_standard_input_is_said_to_be_unreadable(address: str) -> None:
    done = closed(0, "put", "key", "-", "--master", address)
    assert (done.returncode, done.stderr) == (1, b"pykvpool: standard input: Bad file descriptor\n")


@pytest.mark.parametrize(
    "arguments", [("get", "key"), ("ls",), ("stat", "key"), ("status",), ("version",), ("--help",)]
)
def test_a_closed_standard_output_is_said_to_be_unwritable(pool: Pool, source: str, arguments: tuple[str, ...]) -> None:
    pool.run("put", "key", source)
    needs_master = arguments[0] not in ("version", "--help")
    done = closed(1, *arguments, *(("--master", pool.address) if needs_master else ()))
    assert done.returncode == 1
    assert done.stderr.startswith(b"pykvpool: ")
    assert b"Bad file descriptor" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_closed_standard_error_hinders_nobody(pool: Pool, source: str) -> None:
    assert closed(2, "put", "key", source, "--master", pool.address).returncode == 0
    assert closed(2, "get", "key", "--master", pool.address).stdout == b"0123456789"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["get", "--help"], ["version"], ["config"]])
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pykvpool", *arguments], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"pykvpool: No space left on device\n")


def test_a_file_error_names_the_file_that_was_named(pool: Pool, source: str, tmp_path: Path) -> None:
    pool.run("put", "key", source)
    missing = tmp_path / "no" / "where"
    assert (
        pool.run("get", "key", "-o", str(missing), code=1).stderr == f"pykvpool: {missing}: No such file or directory\n"
    )
    full = pool.run("get", "key", "-o", "/dev/full", code=1).stderr
    assert full == "pykvpool: /dev/full: No space left on device\n"
    assert "the output is empty" in pool.run("get", "key", "-o", "", code=1).stderr


@pytest.mark.parametrize("role", ["master", "node"])
def test_a_supervised_server_whose_input_cannot_end_does_not_start(role: str) -> None:
    listen = ("--listen", "tcp://127.0.0.1:0") if role == "master" else ("--master", "tcp://127.0.0.1:1")
    out, err = run(role, *listen, "--supervised", code=1)
    assert out == ""
    assert err.startswith("pykvpool: ConfigError: standard input of a supervised process must be a pipe")
    done = closed(0, role, *listen, "--supervised")
    assert done.returncode == 1
    assert b"must be a pipe" in done.stderr


@pytest.mark.parametrize("environment", [{}, {"TERM": "dumb"}])
def test_top_in_a_pipe_shows_page_after_page(
    address: str, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with command("top", "--interval", "0.1", "--master", address, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        pages = 0
        while pages < 3:
            line = process.stdout.readline()
            assert line, "it ended"
            pages += line.startswith("Nodes")
        process.terminate()
        finish(process, 0)


@pytest.mark.parametrize("arguments", [("top", "--interval", "nan"), ("demo", "--max-seconds", "nan")])
def test_a_flag_that_cannot_be_meant_is_wrong_usage_before_anything_starts(arguments: tuple[str, ...]) -> None:
    out, err = run(*arguments, code=2)
    assert out == ""
    assert arguments[1] in err
    assert "starting" not in err
