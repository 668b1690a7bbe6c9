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


def spawn(*arguments: str, **options: object) -> subprocess.Popen[str]:
    """``python -m pykvpool arguments`` with pipes."""
    options.setdefault("stdin", subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, "-m", "pykvpool", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """A supervised master or node, and what it announced; its input is ended afterwards."""
    process = spawn(*arguments, "--supervised")
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            pytest.fail(f"{arguments[0]} did not start: {process.communicate()[1]}")
        yield process, json.loads(line)
    finally:
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
