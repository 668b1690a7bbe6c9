"""Hosts made of directories: a tree of /sys and /proc, and answers to the questions that no file answers."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from pathlib import Path

from pykvpool.cli.doctor.view import HostView
from pykvpool.errors import NotSupported
from pykvpool.fabric.verbs.load import INSTALL

GID_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
GID_LINK_LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe12:3456"
GID_IPV4 = "0000:0000:0000:0000:0000:ffff:0a01:0203"
GID_IPV6 = "2001:0db8:0000:0000:0000:0000:0000:0007"
GID_NO_ADDRESS = "fe80:0000:0000:0000:0000:0000:0000:0000"


def no_verbs():
    raise NotSupported(f"rdma needs a verbs binding: {INSTALL} (pyverbs: No module named 'pyverbs')")


def no_driver():
    raise NotSupported("GPU memory needs cuda-python: pip install '.[gpu]'")


@dataclass
class FakeHost:
    """Add what the host has, then look at `view`."""

    root: Path
    answers: dict[str, object] = field(default_factory=dict)

    def write(self, where: str, text: str | bytes = "") -> FakeHost:
        path = self.root / where
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            path.write_bytes(text)
        else:
            path.write_text(text + "\n")
        return self

    def link(self, where: str, target: str) -> FakeHost:
        path = self.root / where
        path.parent.mkdir(parents=True, exist_ok=True)
        (self.root / target).mkdir(parents=True, exist_ok=True)
        path.symlink_to(self.root / target)
        return self

    def bare(self) -> FakeHost:
        """A Linux without anything special."""
        self.write("proc/meminfo", "MemTotal: 65536000 kB\nMemAvailable: 33554432 kB")
        self.write("proc/self/status", "Name: python\nCapEff:\t0000000000000000")
        self.write("proc/net/tcp", "  sl  local_address rem_address   st")
        self.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force")
        (self.root / "tmp").mkdir(exist_ok=True)
        return self

    def nic(
        self,
        name: str = "mlx5_0",
        pci: str = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0",
        node: int = 0,
        state: str = "4: ACTIVE",
        link: str = "Ethernet",
        gids: dict[str, tuple[str, str]] | None = None,
        mtu: int = 9000,
        uverbs: str = "uverbs0",
        interface: str = "eth2",
    ) -> FakeHost:
        """A card with one port. `gids`: address -> (type, interface)."""
        device = f"sys/devices/{pci}"
        self.write(f"{device}/numa_node", str(node))
        self.write(f"{device}/net/{interface}/mtu", str(mtu))
        infiniband = f"{device}/infiniband/{name}"
        self.write(f"{infiniband}/hca_type", "MT4129").write(f"{infiniband}/fw_ver", "28.40.1000")
        port = f"{infiniband}/ports/1"
        self.write(f"{port}/state", state).write(f"{port}/link_layer", link)
        self.write(f"{port}/rate", "400 Gb/sec (4X NDR)")
        if gids is None:
            gids = {GID_LINK_LOCAL: ("RoCE v2", interface), GID_IPV4: ("RoCE v2", interface), GID_EMPTY: ("", "")}
        for index, (address, (kind, behind)) in enumerate(gids.items()):
            self.write(f"{port}/gids/{index}", address)
            if kind:
                self.write(f"{port}/gid_attrs/types/{index}", kind)
            if behind:
                self.write(f"{port}/gid_attrs/ndevs/{index}", behind)
        self.link(f"sys/class/infiniband/{name}", infiniband)
        self.link(f"{infiniband}/device", device)
        self.link(f"sys/class/net/{interface}", f"{device}/net/{interface}")
        if uverbs:
            self.write(f"sys/class/infiniband_verbs/{uverbs}/ibdev", name)
            self.write(f"dev/infiniband/{uverbs}")
        return self

    def gpu(
        self, pci: str = "pci0000:15/0000:15:01.0/0000:16:01.0/0000:19:00.0", node: int = 0, driver: str = "570.86.15"
    ) -> FakeHost:
        device = f"sys/devices/{pci}"
        self.write(f"{device}/vendor", "0x10de").write(f"{device}/class", "0x030200")
        self.write(f"{device}/numa_node", str(node))
        self.link(f"sys/bus/pci/devices/{pci.rpartition('/')[2]}", device)
        if driver:
            self.write(
                "proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}"
            )
            self.write("dev/nvidiactl")
        return self

    def nodes(self, count: int = 2) -> FakeHost:
        for node in range(count):
            row = " ".join("10" if other == node else "21" for other in range(count))
            self.write(f"sys/devices/system/node/node{node}/distance", row)
        return self

    @property
    def view(self) -> HostView:
        known = {
            "root": self.root,
            "environment": {},
            "python": (3, 12, 1),
            "kernel": "6.8.0-45-generic",
            "uid": 1000,
            "limit": lambda which: (8 << 20, 8 << 20) if which == resource.RLIMIT_MEMLOCK else (65_536, 65_536),
            "version": lambda package: "1.0",
            "clock": lambda number: 1000.0,
            "listen": lambda host, port: None,
            "reach": lambda address: None,
            "verbs": no_verbs,
            "driver": no_driver,
        }
        return HostView(**{**known, **self.answers})
