"""A pool that an engine brings along: the first of its processes starts one in a child process, all use it.

    engine process ──► starts ──► python -m pykvpool pool    (master, node, its end for engines)
         │                              ▲
         └── AgentPort ── UNIX socket ──┘◄── AgentPort ── the engine's other processes (ranks)

All processes of one engine know its name and so the socket's path; a lock on a file beside it says which of them has
the child. The child stops when its standard input ends, however its parent does. A child that has died is started anew
when the next process looks for it, by whoever has the lock then; its blocks are gone, and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from pykvpool.errors import ConfigError
from pykvpool.host.agent.port import AgentPort
from pykvpool.node.socket_files import default_shm_dir

log = logging.getLogger("pykvpool.host")

#: How long the start of an engine may wait for its pool (s): a cold start of Python on a busy machine.
START_S = 60.0
#: A child that died is not started anew more often than this (s).
RESTART_PAUSE_S = 2.0
#: How long the child may take to leave (s); then it is killed.
STOP_S = 5.0


@dataclass
class _Child:
    """What this process knows of one engine's pool."""

    engine: str
    size_bytes: int
    socket: Path
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Ports of this process that use it.
    users: int = 0
    #: The lock on the file, -1: another process has it, or nobody yet.
    lock_fd: int = -1
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0

    def ensure(self, wait: bool = False) -> None:
        """Have the child run, here or under another process of the engine. With `wait` a child that is started here
        serves afterwards; raises `ConfigError` where it does not."""
        with self.lock:
            if not self._owns() or (self.process is not None and self.process.poll() is None):
                return
            if self.process is not None and time.monotonic() - self.started_at < RESTART_PAUSE_S:
                return
            if self.process is not None:
                log.warning("the pool of this engine has ended (exit code %s): starting it anew", self.process.poll())
                _stop(self.process)
            self.started_at = time.monotonic()
            self.process = self._start()
            if wait:
                self._wait_started(self.process)

    def leave(self) -> None:
        """One port less; the last one of the process that has the child ends it."""
        with self.lock:
            self.users -= 1
            if self.users:
                return
            _children.pop(self.engine, None)
            process, self.process = self.process, None
            if process is not None:
                _stop(process)
            if self.lock_fd >= 0:
                self._lock_file.unlink(missing_ok=True)
                os.close(self.lock_fd)
                self.lock_fd = -1

    def _owns(self) -> bool:
        if self.lock_fd >= 0:
            return True
        fd = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_ino == self._lock_file.stat().st_ino:
                self.lock_fd = fd
                return True
        except (BlockingIOError, FileNotFoundError):
            pass  # another process has it, or has just given it up: the next search will see
        os.close(fd)
        return False

    @property
    def _lock_file(self) -> Path:
        return self.socket.with_suffix(".lock")

    def _start(self) -> subprocess.Popen[bytes]:
        master = self.socket.with_suffix(".master")
        return subprocess.Popen(
            [
                sys.executable, "-m", "pykvpool", "pool", "--supervised", "--listen", f"unix://{master}",
                "--segment-size", str(self.size_bytes), "--name", self.socket.stem, "--fabric", "shm",
                "--shm-dir", str(self.socket.parent), "--engine-socket", str(self.socket),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=_environment(),
        )  # fmt: skip

    def _wait_started(self, process: subprocess.Popen[bytes]) -> None:
        """Raises `ConfigError` where it ends instead; what it says about that goes to our standard error."""
        assert process.stdout is not None, "a pipe"
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        line = process.stdout.readline() if ready else b""
        if not line:
            _stop(process)
            raise ConfigError(
                f"the engine's own pool of {self.size_bytes} bytes did not start; it said why on standard error"
            )
        log.info("the engine's own pool serves at %s", ", ".join(json.loads(line)["addresses"]))


#: Pools of this process, by engine.
_children: dict[str, _Child] = {}
_children_lock = threading.Lock()


def _forget_in_forked_process() -> None:
    """The pools are the parent's: this process must neither end them nor keep their input open."""
    for child in _children.values():
        if child.lock_fd >= 0:
            os.close(child.lock_fd)  # the parent has the lock still
        if child.process is not None:
            child.process.returncode = 0  # not ours to wait for
            for pipe in (child.process.stdin, child.process.stdout):
                if pipe is not None:
                    pipe.close()
    _children.clear()


os.register_at_fork(after_in_child=_forget_in_forked_process)


class LocalPoolPort(AgentPort):
    """A port to the engine's own pool; the pool ends with the last port of the process that started it."""

    def __init__(self, name: str, engine: str, size_bytes: int) -> None:
        """`name`: of this process, `engine`: of the engine, the same in all of its processes and in no other engine.

        Raises `ConfigError` where the pool cannot be started (no memory of that size, no directory).
        """
        with _children_lock:
            child = _children.setdefault(engine, _Child(engine, size_bytes, _socket_of(engine)))
            child.users += 1
        self._child = child
        try:
            child.ensure(wait=True)
            super().__init__(name, socket=str(child.socket), prepare=child.ensure)
        except BaseException:
            child.leave()
            raise

    @property
    def placement(self) -> str:
        return f"the engine's own pool, a process of this host that ends with it ({self._child.socket})"

    def close(self, drain_s: float) -> None:
        closed = self._closed
        super().close(drain_s)
        if not closed:
            self._child.leave()


def _socket_of(engine: str) -> Path:
    """Raises `ConfigError`."""
    return default_shm_dir() / f"engine-{hashlib.sha256(engine.encode()).hexdigest()[:16]}.engines"


def _environment() -> dict[str, str]:
    """Ours, without what would configure the pool otherwise: it is this engine's own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYKVPOOL_", "MOONCAKE_"))}
    paths = [path for path in sys.path if path]
    return own | {"PYTHONPATH": os.pathsep.join(paths)}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End its input, and it, and its pipes."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
