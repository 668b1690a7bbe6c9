"""`pykvpool doctor`: hosts that have things and hosts that have none, each told what works and what to type."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from pykvpool.cli.doctor import checks, command, gpu, memory, ports, rdma, software, topology
from pykvpool.cli.doctor.checks import examine, exit_code
from pykvpool.cli.doctor.command import asked_for, report
from pykvpool.cli.doctor.finding import Finding, Status
from pykvpool.cli.doctor.view import HostView
from pykvpool.cli.doctor.wants import Port, Wants
from pykvpool.cli.main import cli
from pykvpool.errors import GpuFailed
from tests.cli.fake_host import GID_IPV4, GID_IPV6, GID_LINK_LOCAL, GID_NO_ADDRESS, FakeHost
from tests.fabric.fake_verbs import FakeVerbs
from tests.memory.fake_gpu import FakeGpu, facts

RDMA = Wants(fabrics=frozenset(("shm", "tcp", "rdma")))
GPU = Wants(gpu=True)
GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path / "host").bare()


@pytest.fixture(autouse=True)
def _root(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()


def look(host: FakeHost, check, wants: Wants = Wants()) -> list[Finding]:  # noqa: B008 - frozen
    return list(check(host.view, wants))


def the(host: FakeHost, check, wants: Wants = Wants()) -> Finding:  # noqa: B008
    [finding] = look(host, check, wants)
    return finding


def everything(host: FakeHost, wants: Wants = Wants()) -> list[Finding]:  # noqa: B008
    return [finding for section in examine(host.view, wants) for finding in section.findings]


# -- the whole -----------------------------------------------------------------------------------------------------


def test_a_plain_host_can_do_all_that_a_plain_configuration_asks_for(host: FakeHost) -> None:
    findings = everything(host)
    assert {finding.status for finding in findings} == {Status.OK, Status.ABSENT}
    absent = {finding.check for finding in findings if finding.status is Status.ABSENT}
    assert absent == {"rdma.devices", "rdma.binding", "memlock", "gpu.driver"}
    assert len(findings) >= 12


def test_what_a_plain_host_lacks_is_bad_only_for_those_who_ask_for_it(host: FakeHost) -> None:
    bad = {finding.check for finding in everything(host, RDMA) if finding.status is Status.BAD}
    assert bad == {"rdma.devices", "rdma.binding", "memlock"}
    bad = {finding.check for finding in everything(host, GPU) if finding.status is Status.BAD}
    assert bad == {"gpu.driver", "gpu.memory"}


def test_a_host_with_everything_can_do_everything(host: FakeHost) -> None:
    host.nic().gpu().nodes(1)
    host.write("proc/self/status", "CapEff:\tffffffffffffffff").write("sys/module/nvidia_peermem/refcnt", "0")
    host.answers = {"verbs": lambda: FakeVerbs("mlx5_0"), "driver": FakeGpu}
    findings = everything(host, Wants(fabrics=frozenset(("shm", "tcp", "rdma")), gpu=True, segment_bytes=GIB))
    assert [finding for finding in findings if finding.status is not Status.OK] == []
    said = "\n".join(finding.message for finding in findings)
    for part in (
        "mlx5_0 (MT4129, firmware 28.40.1000)", "Ethernet (RoCE), 400 Gb/sec", "IPv4 address 10.1.2.3", "MTU of 9000",
        "by dma-buf or peer memory", "behind the same PCIe switch",
    ):  # fmt: skip
        assert part in said


def test_every_finding_that_is_not_fine_says_what_to_type(host: FakeHost) -> None:
    host.nic(state="1: DOWN").nic(
        "mlx5_1", "pci0000:80/0000:80:01.0/0000:81:00.0", uverbs="", mtu=1500, interface="eth3"
    )
    host.gpu(node=1, driver="")
    for finding in everything(host, Wants(fabrics=RDMA.fabrics, gpu=True, segment_bytes=1 << 50)):
        assert finding.status in (Status.OK, Status.ABSENT) or finding.fix
        assert "\n" not in finding.message + finding.fix


def test_a_check_that_meets_the_unthinkable_costs_only_itself(host: FakeHost, monkeypatch) -> None:
    def clock(view, wants):
        raise ZeroDivisionError("a host beyond imagination")

    monkeypatch.setattr(checks, "SECTIONS", (checks.Section("x", (clock, software.python)),))
    first, second = everything(host)
    assert first.status is Status.WARN and "ZeroDivisionError: a host beyond imagination" in first.message
    assert second.check == "python"


@pytest.mark.parametrize("garbage", [b"", b"\xff\xfe\x00garbage", b"-1", b"999999999999999999999", b": : :\n[ ] 0x\n"])
def test_p12_files_full_of_garbage_are_survived(host: FakeHost, garbage: bytes) -> None:
    host.nic().gpu().nodes(2)
    for path in list(host.root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(garbage)
    for finding in everything(host, Wants(fabrics=RDMA.fabrics, gpu=True, ports=(Port("::1", 7000, "k", True),))):
        assert "could not be looked at" not in finding.message


def test_p12_files_where_directories_should_be_and_links_to_nowhere_are_survived(host: FakeHost) -> None:
    host.nic().gpu()
    for where in ("sys/class/infiniband_verbs", "sys/kernel/mm/hugepages", "proc/net/tcp6"):
        (host.root / where).exists() or host.write(where, "a file")
    (host.root / "sys/class/infiniband/loop").symlink_to(host.root / "sys/class/infiniband/loop")
    (host.root / "sys/class/infiniband/nowhere").symlink_to(host.root / "nowhere")
    (host.root / "sys/devices/system/node").mkdir(parents=True)
    (host.root / "sys/devices/system/node/nodex").mkdir()
    for finding in everything(host, RDMA):
        assert "could not be looked at" not in finding.message


def test_nothing_is_read_beyond_the_hosts_root(host: FakeHost) -> None:
    assert host.view.real("sys/../../..") is None
    assert host.view.read("\0") is None and not host.view.exists("\0") and host.view.names("\0") == []


# -- software ------------------------------------------------------------------------------------------------------


def test_an_old_python_is_bad(host: FakeHost) -> None:
    host.answers["python"] = (3, 10, 9)
    assert the(host, software.python).status is Status.BAD


def test_missing_packages_are_named_with_the_command(host: FakeHost) -> None:
    host.answers["version"] = lambda package: None if package in ("xxhash", "rich") else "1"
    found = the(host, software.packages)
    assert found.status is Status.BAD and found.fix == "pip install xxhash rich"


def test_a_missing_uvloop_is_a_tip(host: FakeHost) -> None:
    host.answers["version"] = lambda package: None
    assert the(host, software.uvloop).fix == "pip install '.[fast]' in a clone of pykvpool"


def test_a_binding_that_is_there_is_named_with_its_version(host: FakeHost) -> None:
    host.answers["verbs"] = FakeVerbs
    assert the(host, software.verbs_binding, RDMA).message == "verbs binding: fake 1"


def test_a_binding_that_is_missing_says_why_and_how_to_install_it(host: FakeHost) -> None:
    found = the(host, software.verbs_binding, RDMA)
    assert found.message == "no verbs binding can be loaded: pyverbs: No module named 'pyverbs'"
    assert "apt-get install python3-pyverbs" in found.fix and "pip install '.[rdma]'" in found.fix


@pytest.mark.parametrize(
    ("boot", "monotonic", "status", "says"),
    [
        (100.0, 100.0, Status.OK, "runs"),
        (9_100.0, 100.0, Status.OK, "suspended for 9000 s"),
        (50.0, 100.0, Status.WARN, "time namespace"),
    ],
)
def test_the_clock_that_leases_run_on_is_compared(host: FakeHost, boot, monotonic, status, says) -> None:
    host.answers["clock"] = lambda number: boot if number == time.CLOCK_BOOTTIME else monotonic
    found = the(host, software.clock)
    assert found.status is status and says in found.message


def test_a_clock_that_cannot_be_read_is_bad(host: FakeHost) -> None:
    def clock(number: int) -> float:
        raise OSError(errno.EINVAL, "Invalid argument")

    host.answers["clock"] = clock
    assert the(host, software.clock).status is Status.BAD


# -- memory --------------------------------------------------------------------------------------------------------


def test_a_segment_larger_than_what_is_left_is_bad(host: FakeHost) -> None:
    found = the(host, memory.available, Wants(segment_bytes=80 * GIB))
    assert found.status is Status.BAD and "80 GiB" in found.message and "32 GiB" in found.fix
    assert the(host, memory.available, Wants(segment_bytes=GIB)).status is Status.OK


def test_memory_of_an_unknown_size_is_no_reason_to_worry(host: FakeHost) -> None:
    (host.root / "proc/meminfo").unlink()
    assert the(host, memory.available, Wants(segment_bytes=GIB)).status is Status.OK


@pytest.mark.parametrize(
    ("limit", "caps", "segment", "wants", "status"),
    [
        (-1, "0", GIB, "rdma", Status.OK),
        (8 << 20, "4000", GIB, "rdma", Status.OK),
        (2 * GIB, "0", GIB, "rdma", Status.OK),
        (8 << 20, "0", GIB, "rdma", Status.BAD),
        (8 << 20, "0", 0, "rdma", Status.BAD),
        (8 << 20, "0", GIB, "tcp", Status.ABSENT),
        (8 << 20, "nonsense", GIB, "rdma", Status.BAD),
    ],
)
def test_locked_memory_is_compared_with_what_rdma_would_pin(host, limit, caps, segment, wants, status) -> None:
    host.answers["limit"] = lambda which: (limit, limit)
    host.write("proc/self/status", f"CapEff:\t{caps}")
    found = the(host, memory.memlock, Wants(fabrics=frozenset((wants,)), segment_bytes=segment))
    assert found.status is status


def test_a_low_limit_on_locked_memory_is_a_warning_where_there_is_a_card(host: FakeHost) -> None:
    assert the(host.nic(), memory.memlock).status is Status.WARN


@pytest.mark.parametrize(("limit", "status"), [(3 * GIB, Status.OK), (GIB, Status.WARN), (GIB - 1, Status.BAD)])
def test_each_device_locks_the_memory_for_itself(host: FakeHost, limit: int, status: Status) -> None:
    for number in range(3):
        place = f"pci0000:15/0000:15:01.0/0000:1{number}:00.0"
        host.nic(f"mlx5_{number}", place, uverbs=f"uverbs{number}", interface=f"eth{number}")
    host.answers["limit"] = lambda which: (limit, limit)
    finding = the(host, memory.memlock, Wants(fabrics=RDMA.fabrics, segment_bytes=GIB))
    assert finding.status is status
    assert ("RDMA needs 1 GiB with each of 3 devices" in finding.message) == (status is not Status.OK)


def test_root_of_a_container_without_privilege_has_the_limit_all_the_same(host: FakeHost) -> None:
    host.write("proc/self/status", "CapEff:\t4000")
    host.write("proc/self/uid_map", "0 1000 1\n1 100000 65536")
    assert the(host.nic(), memory.memlock, RDMA).status is Status.BAD


@pytest.mark.parametrize(
    ("where", "text"),
    [(".dockerenv", ""), ("run/.containerenv", ""), ("proc/1/cgroup", "0::/kubepods/besteffort/pod1")],
)
def test_within_a_container_the_fix_is_the_containers(host: FakeHost, where: str, text: str) -> None:
    assert the(host, memory.memlock, RDMA).fix.startswith("ulimit -l unlimited")
    host.write(where, text)
    assert the(host, memory.memlock, RDMA).fix.startswith("docker run --ulimit memlock=-1")
    assert the(host, rdma.devices, RDMA).fix.startswith("on the host of this container, load the driver")


@pytest.mark.parametrize(
    ("mode", "says"), [("[always] never", "huge pages (shmem_enabled is always)"), ("always [advise]", "small pages")]
)
def test_how_segments_are_paged_is_said(host: FakeHost, mode: str, says: str) -> None:
    host.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", mode)
    host.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512")
    found = the(host, memory.huge_pages)
    assert says in found.message and "512 of 2048kB" in found.message


def test_the_directory_of_the_socket_is_found_as_a_node_finds_it(host: FakeHost) -> None:
    assert "/tmp/pykvpool-1000" in look(host, memory.shared_memory)[0].message
    (host.root / "run/user/1000").mkdir(parents=True)
    host.answers["environment"] = {"XDG_RUNTIME_DIR": "/run/user/1000"}
    assert "/run/user/1000/pykvpool" in look(host, memory.shared_memory)[0].message
    (host.root / "mine").mkdir()
    assert "in /mine" in look(host, memory.shared_memory, Wants(shm_dir="/mine"))[0].message


@pytest.mark.parametrize(
    ("shm_dir", "says"), [("/not/there", "no directory for the socket"), ("/tmp/" + "x" * 60, "too long")]
)
def test_a_directory_that_will_not_do_is_bad_where_shm_is_asked_for(host: FakeHost, shm_dir: str, says: str) -> None:
    found = look(host, memory.shared_memory, Wants(shm_dir=shm_dir))[0]
    assert found.status is Status.BAD and says in found.message
    found = look(host, memory.shared_memory, Wants(fabrics=frozenset(("tcp",)), shm_dir=shm_dir))[0]
    assert found.status is Status.WARN


def test_strict_overcommit_is_warned_of(host: FakeHost) -> None:
    host.write("proc/sys/vm/overcommit_memory", "2")
    assert [finding.status for finding in look(host, memory.shared_memory)] == [Status.WARN, Status.OK, Status.OK]


def test_few_open_files_are_warned_of(host: FakeHost) -> None:
    host.answers["limit"] = lambda which: (1_024, 2_048)
    found = the(host, memory.open_files)
    assert found.status is Status.WARN and "hard limit is 2048" in found.fix
    host.answers["limit"] = lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert the(host, memory.open_files).status is Status.OK


# -- RDMA ----------------------------------------------------------------------------------------------------------


def test_a_kernel_without_rdma_and_one_without_a_device_are_told_apart(host: FakeHost) -> None:
    assert "no InfiniBand core" in the(host, rdma.devices, RDMA).message
    (host.root / "sys/class/infiniband").mkdir(parents=True)
    found = the(host, rdma.devices, RDMA)
    assert found.message == "no RDMA device" and found.status is Status.BAD and "rdma_rxe" in found.fix


def test_a_device_in_software_is_told_with_its_interface(host: FakeHost) -> None:
    host.write("sys/class/infiniband/rxe0/parent", "eth0")
    assert the(host, rdma.devices).message == "RDMA devices: rxe0 (in software, on eth0)"


def test_a_port_that_is_down_is_bad_where_no_other_is_up(host: FakeHost) -> None:
    host.nic(state="1: DOWN")
    found = the(host, rdma.ports, RDMA)
    assert found.status is Status.BAD and found.fix == "sudo ip link set eth2 up"
    host.nic("mlx5_1", "pci0000:80/0000:80:01.0/0000:81:00.0", interface="eth3")
    assert [finding.status for finding in look(host, rdma.ports, RDMA)] == [Status.WARN, Status.OK]


def test_a_device_without_a_port_is_bad(host: FakeHost) -> None:
    host.write("sys/class/infiniband/odd0/node_type", "1: CA")
    assert the(host, rdma.ports, RDMA).status is Status.BAD


@pytest.mark.parametrize(
    ("gids", "status", "says"),
    [
        ({GID_LINK_LOCAL: ("RoCE v2", "eth2"), GID_IPV4: ("RoCE v2", "eth2")}, Status.OK, "IPv4 address 10.1.2.3"),
        ({GID_IPV6: ("RoCE v2", "eth2")}, Status.OK, "IPv6 address 2001:db8::7"),
        ({GID_LINK_LOCAL: ("RoCE v2", "eth2")}, Status.WARN, "link-local addresses only"),
        ({GID_IPV4: ("IB/RoCE v1", "eth2")}, Status.WARN, "RoCE v1"),
        ({GID_IPV4: ("", "")}, Status.WARN, "unknown kind"),
        ({GID_NO_ADDRESS: ("RoCE v2", "")}, Status.BAD, "no address to send from"),
        ({}, Status.BAD, "no address to send from"),
    ],
)
def test_the_addresses_of_a_port_decide_who_can_be_reached(host, gids, status, says) -> None:
    host.nic(gids=gids)
    found = the(host, rdma.addresses, RDMA)
    assert found.status is status and says in found.message
    assert status is Status.OK or ("sudo ip address add" in found.fix and "dev eth2" in found.fix)


def test_devices_that_the_configuration_names_must_be_here(host: FakeHost) -> None:
    host.nic()
    named = Wants(fabrics=RDMA.fabrics, rdma_devices=("mlx5_0", "mlx5_0:1", "mlx5_0:2", "mlx5_9"))
    port, device = look(host, rdma.named_devices, named)
    assert port.status is Status.BAD and "port 2 of mlx5_0" in port.message and port.fix == "ports of mlx5_0: 1"
    assert "mlx5_9" in device.message and device.fix == "one of: mlx5_0"


def test_an_infiniband_port_needs_a_subnet_manager_and_no_ip_address(host: FakeHost) -> None:
    host.nic(link="InfiniBand", gids={"fe80:0000:0000:0000:0002:c903:0000:0001": ("", "")})
    assert the(host, rdma.addresses, RDMA).message == "mlx5_0 port 1: GID fe80::2:c903:0:1"
    assert look(host, rdma.mtu, RDMA) == []


@pytest.mark.parametrize(("mtu", "says"), [(1500, "carry 1024 bytes"), (4191, "carry 2048"), (64, "carry 256")])
def test_a_small_mtu_is_warned_of_with_what_it_means(host: FakeHost, mtu: int, says: str) -> None:
    host.nic(mtu=mtu)
    found = the(host, rdma.mtu)
    assert found.status is Status.WARN and says in found.message and "ip link set eth2 mtu 9000" in found.fix


@pytest.mark.parametrize("mtu", [4192, 9000])
def test_an_mtu_with_room_for_the_largest_packets_is_fine(host: FakeHost, mtu: int) -> None:
    assert the(host.nic(mtu=mtu), rdma.mtu).status is Status.OK


def test_a_device_that_this_user_may_not_open_is_bad(host: FakeHost, monkeypatch) -> None:
    host.nic()
    assert the(host, rdma.access, RDMA).status is Status.OK
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = the(host, rdma.access, RDMA)
    assert found.status is Status.BAD and "chmod" in found.fix


def test_a_container_that_was_given_no_device_is_told_the_flag(host: FakeHost) -> None:
    host.nic().write(".dockerenv")
    (host.root / "dev/infiniband/uverbs0").unlink()
    assert "docker run --device=/dev/infiniband" in the(host, rdma.access, RDMA).fix


def test_a_device_without_a_verbs_file_names_the_module(host: FakeHost) -> None:
    host.nic(uverbs="")
    assert the(host, rdma.access, RDMA).fix == "sudo modprobe ib_uverbs"


def test_limits_are_asked_of_the_device(host: FakeHost) -> None:
    host.nic()
    host.answers["verbs"] = lambda: FakeVerbs("mlx5_0")
    found = the(host, rdma.limits, Wants(fabrics=RDMA.fabrics, segment_bytes=1 << 60))
    assert found.status is Status.OK and "mlx5_0 registers regions of" in found.message


def test_a_device_that_does_not_open_is_reported_and_the_next_one_looked_at(host: FakeHost) -> None:
    host.nic()
    verbs = FakeVerbs("mlx5_0", "mlx5_1")
    names = verbs.devices()
    verbs["mlx5_0"].drop()
    verbs.devices = lambda: names
    host.answers["verbs"] = lambda: verbs
    assert [finding.status for finding in look(host, rdma.limits, RDMA)] == [Status.BAD, Status.OK]


# -- GPUs and distance ---------------------------------------------------------------------------------------------


def test_a_card_without_a_driver_and_a_container_without_the_card_are_told_apart(host: FakeHost) -> None:
    host.gpu(driver="")
    assert "no driver is loaded" in the(host, gpu.driver, GPU).message
    host.gpu("pci0000:20/0000:21:00.0").write(".dockerenv")
    (host.root / "dev/nvidiactl").unlink()
    found = the(host, gpu.driver, GPU)
    assert found.status is Status.BAD and found.fix == "docker run --gpus all"


def test_other_display_cards_are_no_gpus(host: FakeHost) -> None:
    for address, vendor, kind in (("0000:02:00.0", "0x1a03", "0x030000"), ("0000:03:00.0", "0x10de", "0x040300")):
        host.write(f"sys/bus/pci/devices/{address}/vendor", vendor)
        host.write(f"sys/bus/pci/devices/{address}/class", kind)
    assert the(host, gpu.driver).message == "no NVIDIA GPU"


@pytest.mark.parametrize(
    ("text", "kernel", "says"),
    [
        ("NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release", "6.8.0", "driver and kernel support it"),
        ("NVIDIA UNIX x86_64 Kernel Module  535.104.05", "6.8.0", "535.104.05 (proprietary) exports no dma-buf"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  510.47", "6.8.0", "exports no dma-buf"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  570.86", "5.4.0-42-generic", "Linux 5.4.0-42-generic cannot"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  570.86", "weird", "support it"),
    ],
)
def test_dma_buf_needs_the_open_modules_and_a_newer_kernel(host: FakeHost, text: str, kernel: str, says: str) -> None:
    host.gpu().write("proc/driver/nvidia/version", f"NVRM version: {text}")
    host.answers["kernel"] = kernel
    assert says in the(host, gpu.dma_buf).message


def test_peer_memory_is_looked_for(host: FakeHost) -> None:
    assert look(host, gpu.peer_memory) == []
    assert the(host.gpu(), gpu.peer_memory).fix == "sudo modprobe nvidia-peermem"
    host.write("sys/module/nvidia_peermem/refcnt", "0")
    assert the(host, gpu.peer_memory).fix == ""


def test_each_gpu_is_told_how_its_blocks_will_go(host: FakeHost) -> None:
    host.gpu()
    host.answers["driver"] = lambda: FakeGpu(facts(0), facts(1, dma_buf=False), facts(2, direct=False))
    direct, staged, never = look(host, gpu.memory)
    assert "by dma-buf" in direct.message
    assert "staged" in staged.message and "nvidia-peermem" in staged.fix
    assert "does not support GPUDirect" in never.message


def test_a_gpu_that_does_not_answer_is_reported(host: FakeHost) -> None:
    class Broken(FakeGpu):
        def describe(self, ordinal):
            raise GpuFailed("cuDeviceGetAttribute: CUDA_ERROR_UNKNOWN (999)")

    host.gpu().answers["driver"] = Broken
    assert the(host, gpu.memory).status is Status.WARN
    assert the(host, gpu.memory, GPU).status is Status.BAD


def test_without_a_gpu_the_binding_is_not_even_loaded(host: FakeHost) -> None:
    def load():
        raise AssertionError("cuInit takes a second")

    host.answers["driver"] = load
    assert look(host, gpu.memory) == []


@pytest.mark.parametrize(
    ("card", "node", "says", "status"),
    [
        ("pci0000:15/0000:15:01.0/0000:16:01.0/0000:19:00.0", 0, "behind the same PCIe switch", Status.OK),
        ("pci0000:15/0000:15:02.0/0000:20:00.0", 0, "on the same PCIe host bridge", Status.OK),
        ("pci0000:40/0000:40:01.0/0000:41:00.0", 0, "on the same NUMA node", Status.OK),
        ("pci0000:40/0000:40:01.0/0000:41:00.0", -1, "at an unknown distance", Status.OK),
        ("pci0000:80/0000:80:01.0/0000:81:00.0", 1, "on different NUMA nodes (distance 21)", Status.WARN),
    ],
)
def test_the_nearest_nic_of_each_gpu_is_found_by_its_place(host, card, node, says, status) -> None:
    host.nic(node=0).gpu(card, node).nodes(2)
    found = the(host, topology.gpu_and_nic)
    assert says in found.message and found.status is status and "mlx5_0" in found.message


def test_the_nearer_of_two_nics_is_named(host: FakeHost) -> None:
    host.nic("mlx5_0", "pci0000:80/0000:80:01.0/0000:81:00.0", node=1, interface="eth0")
    host.nic("mlx5_1", node=0, interface="eth1").gpu(node=0)
    assert "mlx5_1" in the(host, topology.gpu_and_nic).message


def test_software_devices_are_at_no_place(host: FakeHost) -> None:
    host.write("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE").gpu()
    assert look(host, topology.gpu_and_nic) == []


def test_the_processors_near_a_nic_are_named_where_there_are_others(host: FakeHost) -> None:
    host.nic(node=1)
    assert look(host, topology.nic_and_processor) == []
    host.nodes(2)
    assert "--cpunodebind=1" in the(host, topology.nic_and_processor).fix


# -- ports ---------------------------------------------------------------------------------------------------------

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def socket_line(address: str, port: int, inode: int, state: str = "0A") -> str:
    return (
        f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000  0 {inode} 1\n"
    )


ASKED = Wants(ports=(Port("10.0.0.5", 7000, "master.listen", True),))


@pytest.mark.parametrize(
    ("table", "address", "collides"),
    [
        ("tcp", "0500000A", True),
        ("tcp", "00000000", True),
        ("tcp", "0600000A", False),
        ("tcp6", "0" * 32, True),
        ("tcp6", "0000000000000000FFFF00000500000A", True),
        ("tcp6", "B80D0120000000000000000007000000", False),
    ],
)
def test_a_port_is_taken_where_addresses_overlap(host: FakeHost, table: str, address: str, collides: bool) -> None:
    host.write(f"proc/net/{table}", HEADER + socket_line(address, 7000, 4242))
    assert (the(host, ports.ports, ASKED).status is Status.BAD) is collides


def test_who_has_the_port_is_named(host: FakeHost) -> None:
    host.write("proc/net/tcp", HEADER + socket_line("00000000", 7000, 4242))
    host.write("proc/77/cmdline", b"nginx: master\0-g\0daemon off;\0")
    (host.root / "proc/77/fd").mkdir()
    (host.root / "proc/77/fd/3").symlink_to("socket:[4242]")
    found = the(host, ports.ports, ASKED)
    assert "process 77 (nginx: master -g daemon off;)" in found.message and "sport = :7000" in found.fix


def test_p12_a_name_that_would_move_the_cursor_is_printed_without_that(host: FakeHost, monkeypatch) -> None:
    host.write("proc/net/tcp", HEADER + socket_line("00000000", 7000, 4242))
    host.write("proc/77/cmdline", b"evil\x1b[2J\0")
    (host.root / "proc/77/fd").mkdir()
    (host.root / "proc/77/fd/3").symlink_to("socket:[4242]")
    monkeypatch.setattr(command, "HostView", lambda: host.view)
    assert "process 77 (evil?[2J)" in CliRunner().invoke(cli, ["doctor"]).output


def test_a_pool_that_runs_already_is_no_reason_to_worry(host: FakeHost) -> None:
    host.write("proc/net/tcp", HEADER + socket_line("00000000", 7000, 4242))
    host.write("proc/77/cmdline", b"python3\0-m\0pykvpool\0master\0")
    (host.root / "proc/77/fd").mkdir()
    (host.root / "proc/77/fd/3").symlink_to("socket:[4242]")
    found = the(host, ports.ports, ASKED)
    assert found.status is Status.OK and "served already" in found.message


def test_a_connection_that_merely_uses_the_port_number_does_not_take_it(host: FakeHost) -> None:
    host.write("proc/net/tcp", HEADER + socket_line("0500000A", 7000, 1, state="01"))
    assert the(host, ports.ports, ASKED).message == "free: 10.0.0.5:7000 (master.listen)"


def test_a_default_port_that_is_taken_is_only_a_warning(host: FakeHost) -> None:
    host.write("proc/net/tcp", HEADER + socket_line("00000000", 7000, 1))
    default = Wants(ports=(Port("127.0.0.1", 7000, "master.listen", False),))
    assert the(host, ports.ports, default).status is Status.WARN


@pytest.mark.parametrize(
    ("problem", "fix"),
    [
        (errno.EACCES, "ip_unprivileged_port_start"),
        (errno.EADDRNOTAVAIL, "an address of this host"),
        (errno.EADDRINUSE, "another port"),
    ],
)
def test_a_port_that_cannot_be_had_says_what_to_do(host: FakeHost, problem: int, fix: str) -> None:
    host.answers["listen"] = lambda address, port: problem
    found = the(host, ports.ports, ASKED)
    assert found.status is Status.BAD and fix in found.fix


def test_ipv6_ports_are_written_in_brackets(host: FakeHost) -> None:
    assert "free: [::1]:7000" in the(host, ports.ports, Wants(ports=(Port("::1", 7000, "k", True),))).message


def test_listening_is_really_tried() -> None:
    view = HostView()
    assert view.listen("127.0.0.1", 0) is None
    assert view.listen("192.0.2.1", 0) == errno.EADDRNOTAVAIL
    assert view.listen("no such host.invalid", 1) is None


def test_a_master_of_the_configuration_is_looked_for_where_it_is_said_to_be(host: FakeHost, tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text('[pool]\nmaster = ["tcp://10.0.0.9:7000", "tcp://10.0.0.8:7000"]\n')
    wants = asked_for(str(file), {}, (), False).wants
    host.answers["reach"] = lambda address: "Connection refused" if "9:" in address else None
    silent, there = look(host, ports.masters, wants)
    assert (silent.status, there.status) == (Status.WARN, Status.OK)
    assert silent.message == "no master answers at tcp://10.0.0.9:7000 (pool.master): Connection refused"
    assert "pykvpool master --listen tcp://0.0.0.0:7000" in silent.fix and "correct pool.master" in silent.fix
    assert look(host, ports.masters, asked_for(None, {}, (), False).wants) == []


def test_this_host_reaches_who_listens_and_says_why_not() -> None:
    view = HostView()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert view.reach(address) is None
    why = view.reach(address)
    assert why is not None and "refused" in why.lower()
    assert view.reach("unix:///nowhere/at/all") is not None
    assert view.reach("pigeon://x") is not None


# -- the command ---------------------------------------------------------------------------------------------------


def test_what_a_configuration_asks_for_is_what_is_looked_for(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(
        '[master]\nlisten = ["tcp://[::1]:7100", "unix:///tmp/x"]\n'
        '[node]\nsegment_size = "3GiB"\ndata_listen = "tcp://0.0.0.0:7101"\nfabrics = ["tcp"]\nshm_dir = "/x"\n'
        'rdma_listen = "127.0.0.1:7102"\n[rdma]\ndevices = ["mlx5_0:1"]\n'
    )
    wants = asked_for(str(file), {}, ("rdma",), True).wants
    assert wants.segment_bytes == 3 * GIB and wants.gpu and wants.rdma and wants.shm_dir == "/x"
    assert Port("::1", 7100, "master.listen", True) in wants.ports
    assert Port("0.0.0.0", 7101, "node.data_listen", True) in wants.ports
    assert Port("127.0.0.1", 7102, "node.rdma_listen", True) in wants.ports
    assert wants.rdma_devices == ("mlx5_0:1",)
    plain = asked_for(None, {}, (), False).wants
    assert plain.segment_bytes == 0 and not plain.rdma
    assert plain.ports == (Port("127.0.0.1", 7000, "master.listen", False),)


def test_a_wrong_configuration_is_a_finding_and_the_host_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text('[node]\nsegment_size = "many"\n')
    result = CliRunner().invoke(cli, ["doctor", "--config", str(file), "--json"])
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert not found["works"]
    assert found["findings"][0]["check"] == "config" and "segment_size" in found["findings"][0]["message"]
    assert any(finding["check"] == "clock" for finding in found["findings"])


def test_it_runs_on_this_host_whatever_that_has(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code in (0, 1) and "Traceback" not in result.output
    assert "Python 3." in result.output and "could not be looked at" not in result.output
    as_data = json.loads(CliRunner().invoke(cli, ["doctor", "--json", "--fabric", "rdma", "--gpu"]).output)
    assert {"section", "check", "status", "message", "fix"} == set(as_data["findings"][0])


def test_the_exit_code_is_that_of_what_is_asked_for(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "HostView", lambda: host.view)
    assert CliRunner().invoke(cli, ["doctor"]).exit_code == 0
    asked = CliRunner().invoke(cli, ["doctor", "--fabric", "rdma"])
    assert asked.exit_code == 1
    assert "fix: load the driver of your card" in asked.output
    assert asked.output.splitlines()[-1] == "3 things that are asked for cannot work"
    examined = examine(host.view, RDMA)
    assert exit_code(examined) == 1 and report(examined)["works"] is False
