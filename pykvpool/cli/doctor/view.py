"""How checks see the host: files under a root, and the few questions that no file answers.

All of it can be replaced, so that tests build a host of directories and answers. Reading never raises: a file that is
not there, may not be read, or holds something that is no text is None; /sys and /proc differ between kernels and
containers, and a doctor has to live with that.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from pykvpool.errors import PoolError
from pykvpool.fabric.verbs.load import load as load_verbs
from pykvpool.fabric.verbs.protocol import Verbs
from pykvpool.memory.cuda_driver import Driver
from pykvpool.memory.cuda_python import load_driver
from pykvpool.memory.locked import may_lock_any
from pykvpool.transport.registry import default_transports

#: How long a master may take to accept a connection (s).
REACH_S = 3.0
#: Most bytes read of one file: what we look at are numbers and short tables.
MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HostView:
    """One host."""

    #: Where its file system begins.
    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    python: tuple[int, int, int] = field(default_factory=lambda: sys.version_info[:3])
    kernel: str = field(default_factory=platform.release)
    uid: int = field(default_factory=os.getuid)
    #: (soft, hard) of a resource; -1 is no limit.
    limit: Callable[[int], tuple[int, int]] = resource.getrlimit
    #: Version of an installed package, None: not installed.
    version: Callable[[str], str | None] = field(default_factory=lambda: _version)
    #: Reads a clock by number, in seconds. Raises `OSError`.
    clock: Callable[[int], float] = time.clock_gettime
    #: Tries to listen at an address: None, or the errno that says why not.
    listen: Callable[[str, int], int | None] = field(default_factory=lambda: _listen)
    #: Connects to a control address for a moment: None, or why not.
    reach: Callable[[str], str | None] = field(default_factory=lambda: _reach)
    #: The bindings. Raise `PoolError` where there is none.
    verbs: Callable[[], Verbs] = load_verbs
    driver: Callable[[], Driver] = load_driver

    def path(self, where: str) -> Path:
        """A path of the host, given without its first slash."""
        return self.root / where

    def read(self, where: str) -> str | None:
        """The text of a file without white space at its ends, None where it cannot be had."""
        try:
            with self.path(where).open("rb") as file:
                return file.read(MAX_FILE_BYTES).decode("utf-8", "replace").strip()
        except (OSError, ValueError):
            return None

    def number(self, where: str) -> int | None:
        """A file that holds a number, decimal or 0x."""
        return as_number(self.read(where))

    def names(self, where: str) -> list[str]:
        """What is in a directory, in order; numbers in theirs."""
        try:
            found = [each.name for each in self.path(where).iterdir()]
        except (OSError, ValueError):
            return []
        return sorted(found, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))

    def exists(self, where: str) -> bool:
        try:
            return self.path(where).exists()
        except (OSError, ValueError):
            return False

    def allowed(self, where: str) -> bool:
        """Whether this process may read and write it."""
        return os.access(self.path(where), os.R_OK | os.W_OK)

    def real(self, where: str) -> str | None:
        """Where a link leads, within the host: without a first slash. None where it leads nowhere."""
        try:
            found = self.path(where).resolve(strict=True)
            return str(found.relative_to(self.root.resolve()))
        except (OSError, ValueError, RuntimeError):
            return None

    def may_lock_any_memory(self) -> bool:
        """Whether the limit on locked memory does not count for this process."""
        return may_lock_any(self.path("proc"))

    def in_container(self) -> bool:
        """As far as can be told; it decides which fix is worth typing."""
        if self.exists(".dockerenv") or self.exists("run/.containerenv"):
            return True
        groups = self.read("proc/1/cgroup") or ""
        return "KUBERNETES_SERVICE_HOST" in self.environment or any(
            word in groups for word in ("docker", "kubepods", "containerd", "lxc")
        )

    def kernel_version(self) -> tuple[int, int] | None:
        parts = self.kernel.split(".")
        major, minor = as_number(parts[0]), as_number(parts[1].partition("-")[0]) if len(parts) > 1 else None
        return None if major is None or minor is None else (major, minor)


def as_number(text: str | None) -> int | None:
    """A decimal or 0x number, None for anything else."""
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _listen(host: str, port: int) -> int | None:
    """Listens for a moment. A host that has no address is an error of its name, not of the port: None."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return None
    family, _, _, _, address = found[0]
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
            sock.listen(1)
        except OSError as error:
            return error.errno
    return None


def _reach(address: str) -> str | None:
    """Says nothing to whoever is there."""

    async def attempt() -> None:
        async with asyncio.timeout(REACH_S):
            (await default_transports().connect(address)).close()

    try:
        asyncio.run(attempt())
    except TimeoutError:
        return f"nothing answers within {REACH_S:g} s"
    except PoolError as error:
        return error.message
    return None
