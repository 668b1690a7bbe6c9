"""Checks of distance: which NIC is near which GPU, and which processors are near a NIC.

Devices say by their place in /sys what they hang on. Two behind one switch move bytes between themselves; on one host
bridge they pass the processor's root complex; on different NUMA nodes they pass the link between processors, which
costs bandwidth and often does not carry GPUDirect at all.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from pykvpool.cli.doctor.finding import Check, Finding
from pykvpool.cli.doctor.gpu import PCI_DEVICES, gpus
from pykvpool.cli.doctor.rdma import DEVICES
from pykvpool.cli.doctor.view import HostView, as_number
from pykvpool.cli.doctor.wants import Wants

NODES = "sys/devices/system/node"


class Near(enum.IntEnum):
    """How far two devices are from each other; lower is nearer."""

    SWITCH = 0
    HOST_BRIDGE = 1
    NODE = 2
    #: The kernel does not say.
    UNKNOWN = 3
    FAR = 4


#: How to say it.
WORDS = {
    Near.SWITCH: "behind the same PCIe switch",
    Near.HOST_BRIDGE: "on the same PCIe host bridge",
    Near.NODE: "on the same NUMA node",
    Near.UNKNOWN: "at an unknown distance",
    Near.FAR: "on different NUMA nodes",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a PCI device is."""

    name: str
    #: The bridges above it, from the host bridge down; empty where it is no PCI device.
    path: tuple[str, ...]
    #: -1: the kernel does not say.
    node: int


def place_of(view: HostView, where: str, name: str) -> Place:
    """The device that `where` leads to."""
    real = view.real(where) or ""
    parts = real.split("/")
    start = next((position for position, part in enumerate(parts) if part.startswith("pci")), len(parts))
    node = view.number(f"{where}/numa_node")
    return Place(name, tuple(parts[start:-1]), -1 if node is None else node)


def distance(one: Place, other: Place) -> Near:
    shared = 0
    for ours, theirs in zip(one.path, other.path, strict=False):
        if ours != theirs:
            break
        shared += 1
    # The first shared part is the host bridge, the second a root port: whoever shares that is behind one switch.
    if shared >= 2:
        return Near.SWITCH
    if shared == 1:
        return Near.HOST_BRIDGE
    if one.node < 0 or other.node < 0:
        return Near.UNKNOWN
    return Near.NODE if one.node == other.node else Near.FAR


def gpu_and_nic(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("topology.gpu")
    nics = [place_of(view, f"{DEVICES}/{name}/device", name) for name in view.names(DEVICES)]
    nics = [nic for nic in nics if nic.path]  # software devices are nowhere
    for address in gpus(view):
        if not nics:
            return
        gpu = place_of(view, f"{PCI_DEVICES}/{address}", address)
        nearest = min(nics, key=lambda nic: distance(gpu, nic))
        near = distance(gpu, nearest)
        message = f"GPU {address} and {nearest.name} are {WORDS[near]}"
        if near is Near.FAR:
            apart = _node_distance(view, gpu.node, nearest.node)
            yield check.warn(
                f"{message}{f' (distance {apart})' if apart else ''}, and no RDMA device is nearer",
                f"numactl --cpunodebind={gpu.node} --membind={gpu.node} ENGINE; a NIC in a slot of node {gpu.node} "
                "would do better",
            )
        else:
            yield check.ok(message)


def nic_and_processor(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("topology.nic")
    nodes = [name for name in view.names(NODES) if name.startswith("node") and name[4:].isdecimal()]
    if len(nodes) < 2:
        return
    for name in view.names(DEVICES):
        node = place_of(view, f"{DEVICES}/{name}/device", name).node
        if node >= 0:
            yield check.ok(
                f"{name} is on NUMA node {node} of {len(nodes)}",
                f"memory near it: numactl --cpunodebind={node} --membind={node} pykvpool node",
            )


def _node_distance(view: HostView, one: int, other: int) -> int | None:
    """As the firmware says: 10 is the node itself."""
    row = (view.read(f"{NODES}/node{one}/distance") or "").split()
    return as_number(row[other]) if 0 <= other < len(row) else None
