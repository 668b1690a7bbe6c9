"""Children never outlive us, and their failures are told in their own words."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pykvpool.cli import processes
from pykvpool.cli.boundary import ChildFailed
from pykvpool.cli.processes import Children
from pykvpool.errors import ProtocolError
from tests.cli.live import gone

GOOD = """
import sys
from pykvpool.cli.supervised import Announcement, announce
announce(Announcement("node", ("tcp://127.0.0.1:1", *sys.argv[1:])))
sys.stdin.read()
"""
#: Stops neither when its input ends nor when it is told to.
STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"role": "node", "addresses": []}', flush=True)
signal.pause()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make a module that children can run; returns its name."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), os.getcwd()]))

    def write(text: str, name: str = "a_child") -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


async def test_a_child_says_where_it_listens_and_is_gone_afterwards(module) -> None:
    async with Children() as children:
        child = await children.start("node", module(GOOD), "shm://x")
        announced = await child.announcement()
        assert announced.addresses == ("tcp://127.0.0.1:1", "shm://x")
        pid = child.process.pid
    assert gone(pid)
    assert child.process.returncode == 0


async def test_a_child_that_fails_is_quoted(module) -> None:
    async with Children() as children:
        child = await children.start("node", module("import sys; sys.exit('pykvpool: ConfigError: port 7 is taken')"))
        with pytest.raises(ChildFailed, match=r"node did not start: it ended with exit code 1: .*port 7 is taken"):
            await child.announcement()


async def test_a_child_that_says_something_else_is_refused(module) -> None:
    async with Children() as children:
        child = await children.start("node", module("print('hello')"))
        with pytest.raises(ProtocolError, match="node announced b'hello"):
            await child.announcement()


async def test_a_child_that_keeps_silent_is_given_up(module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "START_TIMEOUT_S", 0.05)
    async with Children() as children:
        child = await children.start("node", module("import sys; sys.stdin.read()"))
        with pytest.raises(ChildFailed, match="node did not start within"):
            await child.announcement()


async def test_an_error_ends_all_children(module) -> None:
    pids = []
    with pytest.raises(ZeroDivisionError):
        async with Children() as children:
            for _ in range(3):
                child = await children.start("node", module(GOOD))
                await child.announcement()
                pids.append(child.process.pid)
            raise ZeroDivisionError
    assert all(gone(pid) for pid in pids)


async def test_a_stubborn_child_is_killed(module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_TIMEOUT_S", 0.05)
    async with Children() as children:
        child = await children.start("node", module(STUBBORN))
        await child.announcement()
    assert child.process.returncode == -signal.SIGKILL


async def test_cancelling_again_and_again_leaves_nobody_behind(module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_TIMEOUT_S", 0.05)
    started = asyncio.Event()
    pids = []

    async def work() -> None:
        async with Children() as children:
            for _ in range(2):
                child = await children.start("node", module(STUBBORN))
                await child.announcement()
                pids.append(child.process.pid)
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await started.wait()
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.01)
    assert task.cancelled()
    assert len(pids) == 2
    assert all(gone(pid, 0) for pid in pids)


def test_a_killed_parent_leaves_nobody_behind(module) -> None:
    parent = f"""
import asyncio
from pykvpool.cli.boundary import ChildFailed
from pykvpool.cli.processes import Children
async def main():
    async with Children() as children:
        child = await children.start("node", {module(GOOD)!r})
        await child.announcement()
        print(child.process.pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    assert gone(pid)
