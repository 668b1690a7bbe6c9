"""`top` on a real terminal (a pseudo one): it draws, and q or Ctrl-C ends it with the terminal as it was."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from pykvpool.cli.main import cli


def press_q(process: subprocess.Popen[bytes], terminal: int) -> None:
    os.write(terminal, b"q")


def interrupt(process: subprocess.Popen[bytes], terminal: int) -> None:
    process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("end", [press_q, interrupt])
def test_top_draws_until_it_is_ended(address: str, end: Callable[[subprocess.Popen[bytes], int], None]) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    arguments = [sys.executable, "-m", "pykvpool", "top", "--interval", "0.1", "--master", address]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "60"}
    with subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment) as process:
        try:
            drawn = b""
            while b"per second" not in drawn:
                drawn += os.read(ours, 65_536)
            assert b"q ends" in drawn
            assert b"node-1" in drawn
            end(process, ours)
            # Take what it still draws, or it could not end.
            ended = os.pidfd_open(process.pid)
            while ended not in (ready := select.select([ended, ours], [], [])[0]):
                os.read(ready[0], 65_536)
            os.close(ended)
            process.wait()
            assert process.stderr is not None
            assert (process.returncode, process.stderr.read()) == (0, b"")
        finally:
            process.kill()
    assert termios.tcgetattr(theirs) == before
    os.close(theirs)
    os.close(ours)


def test_top_without_a_master_says_so() -> None:
    result = CliRunner().invoke(cli, ["top", "--master", "tcp://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "Unavailable" in result.stderr
