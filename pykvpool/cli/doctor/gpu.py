"""Checks of GPUs: the driver, the binding, and which ways a NIC has into their memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pykvpool.cli.doctor.finding import Check, Finding
from pykvpool.cli.doctor.view import HostView
from pykvpool.cli.doctor.wants import Wants
from pykvpool.errors import PoolError
from pykvpool.memory.cuda_driver import Allocation, Driver
from pykvpool.memory.cuda_paths import has_peer_memory, ways_for
from pykvpool.memory.cuda_python import INSTALL

PCI_DEVICES = "sys/bus/pci/devices"
NVIDIA = 0x10DE
#: PCI class of display controllers; the low 16 bits say which sort.
DISPLAY_CLASS = 0x03
#: The RDMA core takes dma-bufs since Linux 5.12; the open modules of this version and later export them.
DMA_BUF_KERNEL = (5, 12)
DMA_BUF_DRIVER = 515
DRIVER_VERSION = "proc/driver/nvidia/version"


@dataclass(frozen=True, slots=True)
class KernelDriver:
    """NVIDIA's kernel modules."""

    version: str
    #: The open flavour.
    is_open: bool

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])


def gpus(view: HostView) -> list[str]:
    """PCI addresses of NVIDIA's GPUs."""
    return [
        address
        for address in view.names(PCI_DEVICES)
        if view.number(f"{PCI_DEVICES}/{address}/vendor") == NVIDIA
        and (view.number(f"{PCI_DEVICES}/{address}/class") or 0) >> 16 == DISPLAY_CLASS
    ]


def kernel_driver(view: HostView) -> KernelDriver | None:
    """What is loaded, None: nothing."""
    text = view.read(DRIVER_VERSION) or ""
    found = re.search(r"NVRM version:.*?(\d+\.\d+(?:\.\d+)?)", text)
    return KernelDriver(found[1], "Open Kernel Module" in text) if found else None


def driver(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("gpu.driver")
    loaded, found = kernel_driver(view), gpus(view)
    if not found and loaded is None:
        yield check.missing("no NVIDIA GPU", "lspci -d 10de: lists the cards that are in a slot", wanted=wants.gpu)
    elif loaded is None:
        yield check.broken(
            f"{_some(len(found))}, and no driver is loaded", "sudo modprobe nvidia (or install the driver)",
            wanted=wants.gpu,
        )  # fmt: skip
    elif not view.exists("dev/nvidiactl"):
        fix = "docker run --gpus all" if view.in_container() else "sudo nvidia-modprobe -u -c=0"
        yield check.broken(
            f"the NVIDIA driver {loaded.version} is loaded, but /dev/nvidiactl is not there", fix, wanted=wants.gpu
        )
    elif not view.allowed("dev/nvidiactl"):
        yield check.broken(
            "no permission to open /dev/nvidiactl", "sudo usermod -aG video $USER, then log in again", wanted=wants.gpu
        )
    else:
        flavour = "open" if loaded.is_open else "proprietary"
        yield check.ok(f"{_some(len(found))}; NVIDIA driver {loaded.version}, {flavour} kernel modules")


def memory(view: HostView, wants: Wants) -> Iterator[Finding]:
    """The binding, and for each GPU the way that its blocks will take."""
    check = Check("gpu.memory")
    if kernel_driver(view) is None and not wants.gpu:
        return
    try:
        cuda = view.driver()
        count = cuda.device_count()
    except PoolError as error:
        yield check.broken(f"GPU memory cannot be used: {error}", INSTALL, wanted=wants.gpu)
        return
    for ordinal in range(count):
        yield _ways(check, view, cuda, ordinal, wants)


def _ways(check: Check, view: HostView, cuda: Driver, ordinal: int, wants: Wants) -> Finding:
    try:
        facts = cuda.describe(ordinal)
    except PoolError as error:
        return check.broken(f"GPU {ordinal} does not answer: {error}", "nvidia-smi -q", wanted=wants.gpu)
    plain = Allocation(ordinal, 0, 1, managed=False, direct=True)
    ways = ways_for(facts, plain, has_peer_memory(view.root))
    name = f"GPU {ordinal} ({facts.name})"
    if ways.usable:
        return check.ok(f"{name}: a NIC may reach its memory by {' or '.join(ways.usable)}")
    return check.ok(
        f"{name}: its memory is staged through pinned host memory ({'; '.join(ways.obstacles)})",
        "sudo modprobe nvidia-peermem, or install the open kernel modules",
    )


def dma_buf(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("gpu.dma-buf")
    loaded = kernel_driver(view)
    if loaded is None:
        return
    kernel = view.kernel_version()
    if kernel is not None and kernel < DMA_BUF_KERNEL:
        yield check.ok(
            f"Linux {view.kernel} cannot register a dma-buf with a NIC", "Linux 5.12 or newer, or nvidia-peermem"
        )
    elif not loaded.is_open or loaded.major < DMA_BUF_DRIVER:
        yield check.ok(
            f"the driver {loaded.version} ({'open' if loaded.is_open else 'proprietary'}) exports no dma-buf",
            "install the open kernel modules (nvidia-open), 515 or newer",
        )
    else:
        yield check.ok("dma-buf: driver and kernel support it")


def peer_memory(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("gpu.peer-memory")
    if kernel_driver(view) is None:
        return
    if has_peer_memory(view.root):
        yield check.ok("peer memory: nvidia-peermem is loaded")
    else:
        yield check.ok("peer memory: nvidia-peermem is not loaded", "sudo modprobe nvidia-peermem")


def _some(count: int) -> str:
    return "1 NVIDIA GPU" if count == 1 else f"{count} NVIDIA GPUs"
