"""Checks of RDMA: devices, who may open them, ports, addresses, MTU, limits.

What the kernel shows under /sys is enough to say what is there, so these checks work without any binding; where one is
installed it adds what only the device knows (`limits`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from pykvpool.cli import format as say
from pykvpool.cli.doctor.finding import Check, Finding
from pykvpool.cli.doctor.view import HostView
from pykvpool.cli.doctor.wants import Wants
from pykvpool.errors import PoolError

DEVICES = "sys/class/infiniband"
SOFT_ROCE = "to try it in software: sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev eth0"
#: What the kernel takes off an Ethernet MTU: GRH or IPv6 40, UDP 8, base header 12, extensions 32, checksum 4.
HEADER_BYTES = 96
PACKET_BYTES = (256, 512, 1024, 2048, 4096)
#: The kernel's word for a port that moves data.
ACTIVE = "ACTIVE"


@dataclass(frozen=True, slots=True)
class SysPort:
    """One port of a device, as /sys shows it."""

    device: str
    number: str
    #: ``ACTIVE``, ``DOWN``, ... "" where the kernel does not say.
    state: str
    ethernet: bool
    rate: str

    @property
    def name(self) -> str:
        return f"{self.device} port {self.number}"

    @property
    def where(self) -> str:
        return f"{DEVICES}/{self.device}/ports/{self.number}"


@dataclass(frozen=True, slots=True)
class SysGid:
    """One address of a port."""

    index: str
    address: ipaddress.IPv6Address
    #: ``RoCE v2``, ``IB/RoCE v1``, "" where the kernel does not say.
    kind: str
    interface: str

    @property
    def text(self) -> str:
        return str(self.address.ipv4_mapped or self.address)


def devices(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("rdma.devices")
    found = view.names(DEVICES)
    where = "on the host of this container, " if view.in_container() else ""
    if found:
        listed = ", ".join(f"{name} ({_model(view, name)})" for name in found)
        yield check.ok(f"RDMA devices: {listed}")
    elif not view.exists(DEVICES):
        yield check.missing(
            "no RDMA: the kernel has no InfiniBand core loaded",
            f"{where}load the driver of your card (sudo modprobe mlx5_ib, ...); {SOFT_ROCE}",
            wanted=wants.rdma,
        )
    else:
        yield check.missing(
            "no RDMA device",
            f"{where}load the driver of your card (lspci -nn | grep -i -e mellanox -e ethernet); {SOFT_ROCE}",
            wanted=wants.rdma,
        )


def named_devices(view: HostView, wants: Wants) -> Iterator[Finding]:
    """Those that the configuration names must be here."""
    check = Check("rdma.named")
    present = view.names(DEVICES)
    for text in wants.rdma_devices:
        name, _, number = text.partition(":")
        if name not in present:
            yield check.broken(
                f"rdma.devices names {name}, which is not here", f"one of: {', '.join(present) or 'none is here'}",
                wanted=wants.rdma,
            )  # fmt: skip
        elif number and not view.exists(f"{DEVICES}/{name}/ports/{number}"):
            ports_here = ", ".join(view.names(f"{DEVICES}/{name}/ports")) or "none"
            yield check.broken(
                f"rdma.devices names port {number} of {name}, which is not here", f"ports of {name}: {ports_here}",
                wanted=wants.rdma,
            )  # fmt: skip


def access(view: HostView, wants: Wants) -> Iterator[Finding]:
    """A device is opened through a file of its own."""
    check = Check("rdma.access")
    files = {view.read(f"sys/class/infiniband_verbs/{name}/ibdev"): name for name in _verbs_nodes(view)}
    for device in view.names(DEVICES):
        name = files.get(device)
        if name is None:
            yield check.broken(f"{device} cannot be opened by programs", "sudo modprobe ib_uverbs", wanted=wants.rdma)
        elif not view.exists(f"dev/infiniband/{name}"):
            fix = (
                "docker run --device=/dev/infiniband --cap-add=IPC_LOCK"
                if view.in_container()
                else "sudo udevadm trigger; is the package rdma-core installed?"
            )
            yield check.broken(f"/dev/infiniband/{name} of {device} is not there", fix, wanted=wants.rdma)
        elif not view.allowed(f"dev/infiniband/{name}"):
            yield check.broken(
                f"no permission to open /dev/infiniband/{name} of {device}",
                f"sudo chmod a+rw /dev/infiniband/{name} (rdma-core's udev rules do so at boot)",
                wanted=wants.rdma,
            )
        else:
            yield check.ok(f"{device} may be opened")


def ports(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("rdma.ports")
    every = list(all_ports(view))
    some = any(port.state == ACTIVE for port in every)
    for port in every:
        if port.state == ACTIVE:
            kind = "Ethernet (RoCE)" if port.ethernet else "InfiniBand"
            yield check.ok(f"{port.name} is up: {kind}{', ' + port.rate if port.rate else ''}")
            continue
        names = _interfaces(view, port)
        fix = f"sudo ip link set {names[0]} up" if names else "check the cable; on InfiniBand: is a subnet manager up?"
        message = f"{port.name} is {port.state or 'in an unknown state'}"
        # One that is down beside one that is up may be meant so.
        yield check.broken(message, fix, wanted=wants.rdma and not some)
    if view.names(DEVICES) and not every:
        yield check.broken("no RDMA device has a port", "look at: rdma link", wanted=wants.rdma)


def addresses(view: HostView, wants: Wants) -> Iterator[Finding]:
    """RoCE sends from a GID; which there are decides who can be reached."""
    check = Check("rdma.gids")
    for port in all_ports(view):
        if port.state != ACTIVE:
            continue
        found = gids(view, port)
        if not port.ethernet:
            yield (
                check.ok(f"{port.name}: GID {found[0].text}")
                if found
                else check.broken(f"{port.name} has no GID", "is a subnet manager up? (sminfo)", wanted=wants.rdma)
            )
            continue
        yield _best(check, view, port, found, wants)


def _best(check: Check, view: HostView, port: SysPort, found: list[SysGid], wants: Wants) -> Finding:
    interface = next((gid.interface for gid in found if gid.interface), "") or (_interfaces(view, port) or ["DEV"])[0]
    assign = f"sudo ip address add 10.0.0.1/24 dev {interface} (an address of your network)"
    routed = [gid for gid in found if "v2" in gid.kind.lower()]
    for kind, wanted in (("IPv4", True), ("IPv6", False)):
        match = [
            gid for gid in routed if (gid.address.ipv4_mapped is not None) is wanted and not gid.address.is_link_local
        ]
        if match:
            return check.ok(f"{port.name}: GID {match[0].index} is RoCE v2 with the {kind} address {match[0].text}")
    if routed:
        return check.warn(f"{port.name} has link-local addresses only: nothing beyond its own link is reached", assign)
    if found:
        return check.warn(
            f"{port.name} has GIDs of RoCE v1 or of an unknown kind only, which no router forwards",
            f"{assign}; cma_roce_mode -d {port.device} -p {port.number} -m 2",
        )
    return check.broken(f"{port.name} has no address to send from", assign, wanted=wants.rdma)


def mtu(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("rdma.mtu")
    for port in all_ports(view):
        if port.state != ACTIVE or not port.ethernet:
            continue
        for name in _interfaces(view, port):
            size = view.number(f"sys/class/net/{name}/mtu")
            if size is None:
                continue
            if size < PACKET_BYTES[-1] + HEADER_BYTES:
                yield check.warn(
                    f"{port.name}: {name} has an MTU of {size}, so packets carry {_payload(size)} bytes and not 4096",
                    f"sudo ip link set {name} mtu 9000 (on every host and switch between them)",
                )
            else:
                yield check.ok(f"{port.name}: {name} has an MTU of {size}")


def limits(view: HostView, wants: Wants) -> Iterator[Finding]:
    """What only the device itself says; needs a binding, and a device that may be opened."""
    check = Check("rdma.limits")
    if not view.names(DEVICES):
        return
    try:
        verbs = view.verbs()
        names = [device.name for device in verbs.devices()]
    except PoolError:
        return  # `rdma.binding` speaks of it
    for name in names:
        try:
            context = verbs.open(name)
        except PoolError as error:
            yield check.broken(
                f"{name} cannot be opened: {error}", f"ls -l /dev/infiniband; ibv_devinfo -d {name}", wanted=wants.rdma
            )
            continue
        try:
            most = context.limits()
            chunks = -(-wants.segment_bytes // most.max_mr_size_bytes) if most.max_mr_size_bytes > 0 else 0
            cut = f": a segment of {say.size(wants.segment_bytes)} takes {chunks} of them" if chunks > 1 else ""
            size = "any size" if most.max_mr_size_bytes >= 1 << 60 else say.size(most.max_mr_size_bytes)
            yield check.ok(
                f"{name} registers regions of {size}{cut}; {most.max_qp} queue pairs of {most.max_qp_wr} requests, "
                f"{most.max_qp_read_depth} reads under way in each"
            )
        except PoolError as error:
            yield check.broken(f"{name} does not tell its limits: {error}", f"ibv_devinfo -v -d {name}", wanted=False)
        finally:
            context.close()


def all_ports(view: HostView) -> Iterator[SysPort]:
    for device in view.names(DEVICES):
        for number in view.names(f"{DEVICES}/{device}/ports"):
            where = f"{DEVICES}/{device}/ports/{number}"
            state = (view.read(f"{where}/state") or "").rpartition(":")[2].strip().upper()
            link = (view.read(f"{where}/link_layer") or "").lower()
            yield SysPort(device, number, state, link != "infiniband", view.read(f"{where}/rate") or "")


def gids(view: HostView, port: SysPort) -> list[SysGid]:
    """Entries in use, by index."""
    found = []
    for index in view.names(f"{port.where}/gids"):
        raw = (view.read(f"{port.where}/gids/{index}") or "").replace(":", "")
        try:
            address = ipaddress.IPv6Address(bytes.fromhex(raw))
        except ValueError:
            continue
        # A prefix without an interface id is what an entry shows whose port has no address yet.
        if int(address) & ((1 << 64) - 1):
            kind = view.read(f"{port.where}/gid_attrs/types/{index}") or ""
            found.append(SysGid(index, address, kind, view.read(f"{port.where}/gid_attrs/ndevs/{index}") or ""))
    return found


def _interfaces(view: HostView, port: SysPort) -> list[str]:
    """Network interfaces behind a port: by its GIDs, else by its PCI device."""
    named = dict.fromkeys(gid.interface for gid in gids(view, port) if gid.interface)
    return list(named) or view.names(f"{DEVICES}/{port.device}/device/net")


def _verbs_nodes(view: HostView) -> list[str]:
    return [name for name in view.names("sys/class/infiniband_verbs") if name.startswith("uverbs")]


def _model(view: HostView, device: str) -> str:
    """What kind of card it is, as far as /sys says."""
    kind = view.read(f"{DEVICES}/{device}/hca_type")
    driver = view.real(f"{DEVICES}/{device}/device/driver")
    firmware = view.read(f"{DEVICES}/{device}/fw_ver")
    parent = view.read(f"{DEVICES}/{device}/parent")
    if parent:
        return f"in software, on {parent}"
    name = kind or (driver or "").rpartition("/")[2] or "of an unknown kind"
    return f"{name}, firmware {firmware}" if firmware and firmware != "0.0.0" else name


def _payload(mtu_bytes: int) -> int:
    """The largest RDMA packet that fits an Ethernet MTU."""
    return max((size for size in PACKET_BYTES if size + HEADER_BYTES <= mtu_bytes), default=PACKET_BYTES[0])
