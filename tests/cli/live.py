"""Real masters and nodes as processes, found by what they announce, and the command to use them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from click.testing import CliRunner, Result

from pykvpool.cli.main import cli

NODE_MIB = 64


@contextlib.contextmanager
def command(*arguments: str, stdin: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """``python -m pykvpool arguments`` with pipes; it has ended afterwards, whatever the test did."""
    with subprocess.Popen(
        [sys.executable, "-m", "pykvpool", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """Wait for its end and return (stdout, stderr); it must have this exit code and no traceback."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out, err


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Run a command as a process: (stdout, stderr)."""
    with command(*arguments, stdin=subprocess.DEVNULL) as process:
        return finish(process, code)


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """A supervised master or node, and what it announced; its input is ended afterwards."""
    with command(*arguments, "--supervised") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            pytest.fail(f"{arguments[0]} did not start: {process.communicate()[1]}")
        yield process, json.loads(line)
        process.communicate(timeout=30)


def gone(pid: int, timeout_s: float = 10.0) -> bool:
    """Whether the process ends (or has ended) within the time: the kernel's word, no looking again and again."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Pool:
    """A running pool, and the command to use it."""

    address: str

    def run(self, *arguments: str, stdin: str | bytes | None = None, code: int = 0) -> Result:
        """Run a command in this process; its exit code must be `code`."""
        result = CliRunner().invoke(cli, [*arguments, "--master", self.address], input=stdin)
        assert result.exit_code == code, result.output
        return result
