"""A pool that an engine brings along: one command is enough, and nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

import pytest

from pykvpool.errors import ConfigError
from pykvpool.host.local_pool import LocalPoolPort
from pykvpool.host.port import Found, Question
from tests.host.stage import MIB, SCOPE, Engine, Memory, chain, until


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Where sockets of this test's engines are."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "pykvpool"


def pool_process(port: LocalPoolPort) -> subprocess.Popen:
    assert port._child.process is not None
    return port._child.process


def gone(pid: int) -> bool:
    """Whether the process ends; the kernel's word."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 20.0)[0])
    finally:
        os.close(descriptor)


PROCESS = """
import sys
from pykvpool.host.local_pool import LocalPoolPort
from pykvpool.host.port import Question
from tests.host.stage import SCOPE, Engine, Memory, chain
port = LocalPoolPort("rank1", "engine", 1 << 24)
engine = Engine(port).connected()
print(engine.lookup(Question((SCOPE,), chain(5))).found[0].count, port._child.process is None, flush=True)
if "stay" in sys.argv:
    print(port._child.process.pid, flush=True)
    if "fork" in sys.argv:
        import os, time
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    sys.stdin.read()
port.close(1.0)
"""


@contextlib.contextmanager
def other_process(*arguments: str):
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROCESS, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_the_first_process_starts_it_and_the_others_of_the_engine_use_it(directory):
    port, memory = LocalPoolPort("rank0", "engine", 16 * MIB), Memory().fill()
    engine = Engine(port).connected()
    assert engine.save(memory.group(chain(5), range(5))).stored == 5
    scheduler = LocalPoolPort("scheduler", "engine", 16 * MIB)
    assert Engine(scheduler).connected().lookup(Question((SCOPE,), chain(5))).found == (Found(5),)
    with other_process() as process:
        assert process.stdout.readline() == "5 True\n"
        process.wait(20)
    pid = pool_process(port).pid
    scheduler.close(0.0)
    assert engine.load(Memory().group(chain(5), range(5))).loaded, "it lives while a port of its parent is open"
    port.close(1.0)
    assert gone(pid)
    assert list(directory.iterdir()) == []


def test_two_engines_of_a_host_do_not_share_it():
    first, second = LocalPoolPort("a", "one", 16 * MIB), LocalPoolPort("b", "two", 16 * MIB)
    memory = Memory().fill()
    assert Engine(first).connected().save(memory.group(chain(5), range(5))).stored == 5
    assert Engine(second).connected().lookup(Question((SCOPE,), chain(5))).found == (Found(0),)
    first.close(0.0)
    second.close(0.0)


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_it_ends_with_its_parent_however_that_ends(how):
    """Also where a forked child of the parent lives on."""
    with other_process("stay", how) as process:
        assert process.stdout.readline() == "0 False\n"
        pid = int(process.stdout.readline())
        assert os.path.exists(f"/proc/{pid}")
        process.kill()
        assert gone(pid)


def test_one_that_dies_is_started_anew(monkeypatch):
    monkeypatch.setattr("pykvpool.host.local_pool.RESTART_PAUSE_S", 0.0)
    port, memory = LocalPoolPort("rank0", "engine", 16 * MIB), Memory().fill()
    engine = Engine(port).connected()
    first = pool_process(port)
    first.kill()
    until(lambda: pool_process(port) is not first, "no other one was started")
    until(lambda: port.connected and engine.save(memory.group(chain(5), range(5))).stored == 5)
    port.close(0.0)


def test_one_that_cannot_be_is_said_at_the_start():
    with pytest.raises(ConfigError, match="did not start"):
        LocalPoolPort("rank0", "engine", 1 << 60)
    port = LocalPoolPort("rank0", "engine", 16 * MIB)
    Engine(port).connected()
    port.close(0.0)
