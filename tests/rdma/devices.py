"""The guest's devices, and what can be done to them from outside (see tests/rdma/guest/README.md)."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys/class/infiniband")
LEFT, RIGHT = "rxeA", "rxeB"


@dataclass(frozen=True)
class Rail:
    """Two devices that a cable joins."""

    left: str
    right: str


RAILS = (Rail("rxeA", "rxeB"), Rail("rxeC", "rxeD"))


def devices_are_here() -> bool:
    return all((SYSFS / name).exists() for rail in RAILS for name in (rail.left, rail.right))


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def interface(device: str) -> str:
    return "v" + device.removeprefix("rxe")


def set_port(device: str, up: bool) -> None:
    run("ip", "link", "set", interface(device), "up" if up else "down")


def counters(device: str) -> dict[str, int]:
    """What the device counted since it was made (Soft-RoCE's `hw_counters`)."""
    directory = SYSFS / device / "ports" / "1" / "hw_counters"
    return {path.name: int(path.read_text()) for path in directory.iterdir() if path.name != "lifespan"}
