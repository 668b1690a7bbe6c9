"""The guest's devices, and what can be done to them from outside (see tests/rdma/guest/README.md)."""

from __future__ import annotations

import re
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


def remove_device(device: str) -> subprocess.Popen[bytes]:
    """Soft-RoCE has no way to take a device from those who have it open: the command waits until they close it, and
    the device works meanwhile."""
    return subprocess.Popen(["rdma", "link", "delete", device], stdin=subprocess.DEVNULL)


def remove_interface(device: str) -> subprocess.Popen[bytes]:
    """Both ends of the cable go, and with them their devices. The command waits as above; the devices fail at once."""
    return subprocess.Popen(["ip", "link", "delete", interface(device)], stdin=subprocess.DEVNULL)


def restore(rail: Rail) -> None:
    """What `guest_init` made."""
    if not Path("/sys/class/net", interface(rail.left)).exists():
        network = {"rxeA": "10.98.0", "rxeC": "10.97.0"}[rail.left]
        run("ip", "link", "add", interface(rail.left), "type", "veth", "peer", "name", interface(rail.right))
        for number, device in enumerate((rail.left, rail.right), 1):
            name = interface(device)
            run("ip", "address", "add", f"{network}.{number}/24", "dev", name)
            run("ip", "link", "set", name, "mtu", "9000", "up")
            Path(f"/proc/sys/net/ipv4/conf/{name}/accept_local").write_text("1")
            Path(f"/proc/sys/net/ipv4/conf/{name}/rp_filter").write_text("0")
    for device in (rail.left, rail.right):
        if not (SYSFS / device).exists():
            run("rdma", "link", "add", device, "type", "rxe", "netdev", interface(device))
        set_port(device, True)


def tcp_bytes_sent() -> int:
    """What the TCP connections that are open now have sent since they began, as the kernel counts it."""
    listed = subprocess.run(["ss", "-tinH"], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return sum(int(count) for count in re.findall(r"bytes_sent:(\d+)", listed.stdout))
