"""How much memory this process could still get, as far as the kernel tells: the host's word and the container's.

Asking first turns "killed by the kernel while filling the segment" into an error that names two numbers.
"""

from __future__ import annotations

from pathlib import Path


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that can still be had: MemAvailable, or what the cgroup (v2) leaves if that is less; None: unknown."""
    answers = [answer for answer in (_host_available(proc), _cgroup_available(proc, cgroup)) if answer is not None]
    return min(answers, default=None)


def _host_available(proc: Path) -> int | None:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass  # not there, or not what a kernel writes: not known
    return None


def _cgroup_available(proc: Path, cgroup: Path) -> int | None:
    """What the tightest limit on the path from our cgroup to the root leaves."""
    try:
        entry = (proc / "self" / "cgroup").read_text().splitlines()[-1]
    except (OSError, ValueError, IndexError):
        return None
    name = entry.rpartition(":")[2].strip("/")
    folder = cgroup / name if name else cgroup
    left: int | None = None
    while True:
        try:
            limit = (folder / "memory.max").read_text().strip()
            if limit != "max":
                here = max(0, int(limit) - int((folder / "memory.current").read_text()))
                left = here if left is None else min(left, here)
        except (OSError, ValueError):
            pass  # the root has no such file, an older kernel has none at all: no limit known here
        if folder == cgroup or cgroup not in folder.parents:
            return left
        folder = folder.parent
