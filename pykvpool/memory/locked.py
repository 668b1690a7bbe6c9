"""How much memory this process may lock: what is registered with a card is pinned, and counts against a limit.

Asking first turns a refused registration, which a driver reports as "cannot allocate memory", into one line with the
fix. The kernel counts each registration by itself: memory that two cards know counts twice.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

#: What to do about it, whoever started the process.
FIX = "raise it: 'ulimit -l unlimited', LimitMEMLOCK=infinity for a systemd unit, --ulimit memlock=-1 for a container"
_PROC = Path("/proc")
#: Bit of CAP_IPC_LOCK in a capability mask.
_CAP_IPC_LOCK = 14
#: How many ids the first user namespace maps: all there are.
_EVERY_ID = 4_294_967_295


@dataclass(frozen=True, slots=True)
class LockedMemory:
    """What may be locked, and what is. `limit_bytes`: None for any amount."""

    limit_bytes: int | None
    used_bytes: int

    def shortage(self, needed_bytes: int) -> str:
        """What is wrong with locking so much more, with the fix; "" where nothing is."""
        if self.limit_bytes is None or self.used_bytes + needed_bytes <= self.limit_bytes:
            return ""
        used = f", {self.used_bytes} of them in use" if self.used_bytes else ""
        return f"the limit on locked memory is {self.limit_bytes} bytes{used}: {FIX}"


def locked_memory(proc: Path = _PROC) -> LockedMemory:
    """As it is now."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY or may_lock_any(proc):
        return LockedMemory(None, 0)
    try:
        used = int(_field(proc, "VmPin").split()[0]) * 1024
    except (ValueError, IndexError):
        used = 0
    return LockedMemory(limit, used)


def may_lock_any(proc: Path = _PROC) -> bool:
    """Whether the limit does not count for this process: it has CAP_IPC_LOCK, and not only within a namespace of users,
    where the kernel does not look at it."""
    try:
        capable = bool(int(_field(proc, "CapEff") or "0", 16) >> _CAP_IPC_LOCK & 1)
    except ValueError:
        return False
    return capable and not _in_user_namespace(proc)


def _in_user_namespace(proc: Path) -> bool:
    try:
        ids = [line.split() for line in (proc / "self" / "uid_map").read_text().splitlines()]
    except (OSError, ValueError):
        return False
    return ids != [["0", "0", str(_EVERY_ID)]]


def _field(proc: Path, name: str) -> str:
    try:
        lines = (proc / "self" / "status").read_text().splitlines()
    except (OSError, ValueError):
        return ""
    return next((value.strip() for key, _, value in (line.partition(":") for line in lines) if key == name), "")
