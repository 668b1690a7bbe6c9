"""What killed nodes left behind goes; what anybody uses stays."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pykvpool.node.socket_files import shm_path, sweep


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def left_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as owner:
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
