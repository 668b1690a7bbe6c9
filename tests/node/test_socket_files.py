"""What killed nodes left behind goes; what anybody uses stays."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pykvpool.node.socket_files import default_shm_dir, engine_path, shm_path, sweep


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.fixture
def own_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runtime directory of this user."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return default_shm_dir()


def left_socket(path: Path, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> None:
    with socket.socket(socket.AF_UNIX, kind) as owner:
        owner.bind(str(path))


def test_only_dead_sockets_of_the_same_node_are_removed(tmp_path: Path, dead_pid: int) -> None:
    own = shm_path("n", str(tmp_path))
    left_socket(tmp_path / f"n-{dead_pid}.sock")
    spared = [
        tmp_path / f"n-{os.getppid()}.sock",  # a process that may be about to listen
        tmp_path / f"m-{dead_pid}.sock",  # of another node
        tmp_path / f"n-1-{dead_pid}.sock",  # of a node whose name begins alike
        Path(own),
    ]
    for path in spared:
        left_socket(path)
    (tmp_path / f"n-{dead_pid}0.sock").write_text("no socket")
    heard = tmp_path / f"n-{dead_pid + 2**22}.sock"  # beyond every process number of Linux, and yet somebody listens
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(heard))
        listener.listen()
        sweep(own)
        assert set(tmp_path.iterdir()) == {*spared, heard, tmp_path / f"n-{dead_pid}0.sock"}


def test_a_directory_that_is_not_there_yet_has_nothing_to_sweep(tmp_path: Path) -> None:
    sweep(shm_path("n", str(tmp_path / "later")))
    assert not (tmp_path / "later").exists()


@pytest.mark.parametrize("path_of", [shm_path, engine_path])
def test_in_the_users_own_directory_all_that_dead_nodes_left_goes(own_dir: Path, dead_pid: int, path_of) -> None:
    own = path_of("n", "")
    for name in (f"n-{dead_pid}.sock", f"m-{dead_pid}.sock", f"m-1-{dead_pid}.engines"):
        left_socket(own_dir / name)
    spared = [own_dir / f"m-{os.getppid()}.sock", Path(own), own_dir / f"m-{dead_pid}.other"]
    for path in spared:
        left_socket(path)
    sweep(own)
    assert set(own_dir.iterdir()) == set(spared)


def left_by_an_engine(directory: Path, stem: str) -> list[Path]:
    files = [directory / f"{stem}.{suffix}" for suffix in ("engines", "lock", "master")]
    left_socket(files[0])
    files[1].touch()
    left_socket(files[2], socket.SOCK_STREAM)
    return files


def test_what_a_dead_engines_own_pool_left_goes_and_a_living_ones_stays(own_dir: Path) -> None:
    left_by_an_engine(own_dir, "engine-" + "0" * 16)
    (own_dir / ("engine-" + "1" * 16 + ".lock")).touch()
    left_socket(own_dir / ("engine-" + "2" * 16 + ".engines"))
    living = left_by_an_engine(own_dir, "engine-" + "a" * 16)
    other = left_by_an_engine(own_dir, "engine-mine")
    with living[1].open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep(shm_path("n", ""))
        assert set(own_dir.iterdir()) == {*living, *other}
    sweep(shm_path("n", ""))
    assert set(own_dir.iterdir()) == set(other)


def test_a_pool_that_is_just_ending_keeps_its_sockets(own_dir: Path) -> None:
    _, _, master = left_by_an_engine(own_dir, "engine-" + "0" * 16)
    master.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(master))
        listener.listen()
        sweep(shm_path("n", ""))
        assert list(own_dir.iterdir()) == [master]


def test_outside_of_the_users_own_directory_an_engines_files_are_anybodys(tmp_path: Path) -> None:
    files = left_by_an_engine(tmp_path, "engine-" + "0" * 16)
    sweep(shm_path("n", str(tmp_path)))
    assert sorted(tmp_path.iterdir()) == files
