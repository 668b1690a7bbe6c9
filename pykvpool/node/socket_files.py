"""Where a node's UNIX sockets lie, for shared memory and for engines, and what killed nodes left there.

The name of the file holds the node's name and process, so that two processes never meet at one file. An engine's own
pool has the engine in it instead, and a lock beside it that its starter holds while it lives. Who is killed cannot
remove its own; the next node that starts in this user's directory does, for all who are dead. In a directory that
somebody named, where other programs may keep sockets too, it does so for earlier nodes of its own name alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import socket
import stat
import tempfile
from pathlib import Path

from pykvpool.errors import ConfigError

log = logging.getLogger("pykvpool.node")

#: Longest part of a node's name in the file's: a path of a UNIX socket has 107 bytes at most.
MAX_NAME_CHARS = 40
#: How the file's name of a socket ends: for shared memory, and for engines.
SHM_SUFFIX = ".sock"
ENGINE_SUFFIX = ".engines"
#: And what an engine's own pool has beside the latter: its master's socket, its starter's lock.
MASTER_SUFFIX = ".master"
LOCK_SUFFIX = ".lock"
#: Files of engines' own pools, by the names that `pykvpool.host.local_pool` gives them.
_OF_ENGINES = re.compile(r"engine-[0-9a-f]{16}\.(?:engines|master|lock)", re.ASCII)


def shm_path(node: str, directory: str) -> str:
    """The socket of a node in this process, in `directory` or the user's own one. Raises `ConfigError`."""
    place = Path(directory).absolute() if directory else default_shm_dir()
    return str(place / f"{_safe(node)}-{os.getpid()}{SHM_SUFFIX}")


def engine_path(node: str, directory: str) -> str:
    """The socket at which engines of this host find the node of this process. Raises `ConfigError`."""
    return str(Path(shm_path(node, directory)).with_suffix(ENGINE_SUFFIX))


def engine_sockets() -> list[str]:
    """Where nodes of this host and user may be waiting for engines, in a fixed order; some may be dead."""
    found: list[Path] = []
    for place in shm_dirs():
        with contextlib.suppress(OSError):  # it is not there, or not ours: no node of ours is in it
            if _is_private(place):
                found += sorted(path for path in place.iterdir() if path.suffix == ENGINE_SUFFIX and path.is_socket())
    return [str(path) for path in found]


def shm_dirs() -> list[Path]:
    """Where sockets of this user may lie: the runtime directory of a login, and, for who has none (a service, a cron
    job, who became another user with `su`), a directory beside other users' ones. A process's own is the first; a
    node's may be another than its engines'."""
    beside_others = Path(tempfile.gettempdir()) / f"pykvpool-{os.getuid()}"
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR")
    if runtime_dir and _is_own(Path(runtime_dir)):
        return [Path(runtime_dir) / "pykvpool", beside_others]
    return [beside_others, Path(f"/run/user/{os.getuid()}") / "pykvpool"]


def default_shm_dir() -> Path:
    """The user's own runtime directory, or one in the temporary directory that only this user can enter.

    Raises `ConfigError` where somebody else already took that name, or nothing can be made there.
    """
    base = shm_dirs()[0]
    try:
        with contextlib.suppress(FileExistsError):
            base.mkdir(mode=0o700)
        private = _is_private(base)
    except OSError as error:
        raise ConfigError(f"cannot make {base}: {error.strerror}: name another with --shm-dir") from error
    if not private:
        raise ConfigError(f"{base} is not a directory of this user alone: remove it, or name another with --shm-dir")
    return base


def _is_own(place: Path) -> bool:
    try:
        return place.is_dir() and place.stat().st_uid == os.getuid()
    except OSError:
        return False


def _is_private(place: Path) -> bool:
    """A directory, no link to one, of this user alone. Raises `OSError` where nothing is there."""
    status = place.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def sweep(path: str) -> None:
    """Remove what dead processes left beside `path`.

    Dead means that nobody listens there *and* no process has its number: a node that starts has a file a moment before
    it listens. For an engine's own pool it means that its lock can be taken.
    """
    own = Path(path)
    try:
        ours = own.parent in shm_dirs() and _is_private(own.parent)
        beside = sorted(own.parent.iterdir())
    except OSError:
        return  # not made yet, or not ours to read: whoever listens there will say so
    name = ".+" if ours else re.escape(own.name.rpartition("-")[0])
    kind = "|".join(map(re.escape, ((SHM_SUFFIX, ENGINE_SUFFIX) if ours else (own.suffix,))))
    of_nodes = re.compile(rf"{name}-(\d{{1,9}})(?:{kind})", re.ASCII)
    for found in beside:
        match = of_nodes.fullmatch(found.name)
        if match is None or found == own or _runs(int(match[1])) or not _nobody_listens(found):
            continue
        _remove(found)
    if ours:
        for stem in sorted({found.stem for found in beside if _OF_ENGINES.fullmatch(found.name)}):
            _sweep_engine(own.parent / stem)


def _sweep_engine(base: Path) -> None:
    """Remove what an engine's own pool left, unless somebody has its lock. The lock goes last and while it is held:
    another who opened the file before sees that it is no longer the one of that name, and takes the new one."""
    lock = base.with_suffix(LOCK_SUFFIX)
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_ino != lock.stat().st_ino:
            return
        for left in (base.with_suffix(ENGINE_SUFFIX), base.with_suffix(MASTER_SUFFIX)):
            if _nobody_listens(left):  # else the pool is ending just now, and removes its own
                _remove(left)
        _remove(lock)
    except OSError:
        pass  # somebody has it, or has just given it up
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    log.info("removing %s: its process is gone", path)
    with contextlib.suppress(OSError):  # gone already, or not ours to remove
        path.unlink()


def _safe(node: str) -> str:
    safe = "".join(character if character.isalnum() or character in "-_." else "_" for character in node)
    return safe[:MAX_NAME_CHARS]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _nobody_listens(path: Path) -> bool:
    if not path.is_socket():
        return False
    kind = socket.SOCK_STREAM if path.suffix == MASTER_SUFFIX else socket.SOCK_SEQPACKET
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
