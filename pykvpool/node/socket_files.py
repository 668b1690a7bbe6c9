"""Where a node's UNIX sockets lie, for shared memory and for engines, and what killed nodes left there.

The name of the file holds the node's name and process, so that two processes never meet at one file. A node that is
killed cannot remove its own; the next node of that name does, and touches nothing of anybody else.
"""

from __future__ import annotations

import contextlib
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
#: Ends the file's name of a socket for engines; shm's ends in ``.sock``.
ENGINE_SUFFIX = ".engines"


def shm_path(node: str, directory: str) -> str:
    """The socket of a node in this process, in `directory` or the user's own one. Raises `ConfigError`."""
    place = Path(directory).absolute() if directory else default_shm_dir()
    return str(place / f"{_safe(node)}-{os.getpid()}.sock")


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
    """Remove the sockets beside `path` that dead processes of the same node left.

    Dead means that nobody listens there *and* no process has its number: a node that starts has a file a moment before
    it listens.
    """
    own = Path(path)
    prefix = own.name.rpartition("-")[0]
    try:
        beside = sorted(own.parent.iterdir())
    except OSError:
        return  # not made yet, or not ours to read: whoever listens there will say so
    for found in beside:
        match = re.fullmatch(re.escape(prefix) + r"-(\d{1,9})" + re.escape(own.suffix), found.name, re.ASCII)
        if match is None or found == own or _runs(int(match[1])) or not _nobody_listens(found):
            continue
        log.info("removing %s: its process is gone", found)
        with contextlib.suppress(OSError):  # gone already, or not ours to remove
            found.unlink()


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
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
