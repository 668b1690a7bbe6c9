"""All checks, in the order of the report, and running them: whatever one of them meets, the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pykvpool.cli.doctor import gpu, memory, ports, rdma, software, topology
from pykvpool.cli.doctor.finding import Check, Finding, Status
from pykvpool.cli.doctor.view import HostView
from pykvpool.cli.doctor.wants import Wants

#: Looks at a host, touches nothing.
Examination = Callable[[HostView, Wants], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    checks: Sequence[Examination]


SECTIONS = (
    Section("software", (software.python, software.packages, software.uvloop, software.clock)),
    Section(
        "memory",
        (memory.available, memory.shared_memory, memory.memlock, memory.huge_pages, memory.open_files),
    ),
    Section("network", (ports.ports, ports.masters)),
    Section(
        "RDMA",
        (
            rdma.devices, rdma.named_devices, software.verbs_binding, rdma.access, rdma.ports, rdma.addresses,
            rdma.mtu, rdma.limits, topology.nic_and_processor,
        ),
    ),
    Section("GPU", (gpu.driver, gpu.memory, gpu.dma_buf, gpu.peer_memory, topology.gpu_and_nic)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Examined:
    """What a section's checks found."""

    title: str
    findings: tuple[Finding, ...]


def examine(view: HostView, wants: Wants) -> list[Examined]:
    """Run every check. Never raises."""
    return [
        Examined(section.title, tuple(finding for check in section.checks for finding in _run(check, view, wants)))
        for section in SECTIONS
    ]


def exit_code(examined: Iterable[Examined]) -> int:
    """1 where something that is asked for cannot work."""
    return int(any(finding.status is Status.BAD for section in examined for finding in section.findings))


def _run(examination: Examination, view: HostView, wants: Wants) -> Iterator[Finding]:
    try:
        yield from examination(view, wants)
    except Exception as error:  # noqa: BLE001 - hosts are stranger than checks: say so, and look at the rest
        name = f"{examination.__module__.rpartition('.')[2]}.{examination.__name__}"
        yield Check(name).warn(
            f"this could not be looked at ({type(error).__name__}: {error})",
            "report it, with what pykvpool doctor --json prints",
        )
