"""Checks of memory: is there enough, may it be locked, how is it paged, can it be shared."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from pykvpool.cli import format as say
from pykvpool.cli.doctor.finding import Check, Finding
from pykvpool.cli.doctor.view import HostView
from pykvpool.cli.doctor.wants import Wants
from pykvpool.memory.available import available_bytes

#: Locked memory that a client without a segment uses: slots, a few queues.
CLIENT_LOCKED_BYTES = 64 << 20
#: Connections and maps of a busy node.
ENOUGH_FILES = 4_096
#: A path of a UNIX socket has this many bytes at most, and the node's own file name takes some sixty.
SOCKET_PATH_BYTES = 107
SOCKET_NAME_BYTES = 60

NO_LIMIT = resource.RLIM_INFINITY


def available(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("memory")
    left = available_bytes(view.path("proc"), view.path("sys/fs/cgroup"))
    if left is None:
        yield check.ok("how much memory is left is not known here")
    elif wants.segment_bytes > left:
        yield check.bad(
            f"node.segment_size is {say.size(wants.segment_bytes)}, and {say.size(left)} of memory are left",
            f"set node.segment_size to less than {say.size(left)}, or raise the container's memory limit",
        )
    else:
        yield check.ok(f"{say.size(left)} of memory are left")


def memlock(view: HostView, wants: Wants) -> Iterator[Finding]:
    """RDMA pins what it registers."""
    check = Check("memlock")
    soft, _ = view.limit(resource.RLIMIT_MEMLOCK)
    needed = max(wants.segment_bytes, CLIENT_LOCKED_BYTES)
    devices = len(wants.rdma_devices) or len(view.names("sys/class/infiniband"))
    if soft == NO_LIMIT:
        yield check.ok("memory may be locked without limit")
    elif view.may_lock_any_memory():
        yield check.ok(f"memory may be locked beyond the limit of {say.size(soft)} (CAP_IPC_LOCK)")
    elif soft >= needed * max(1, devices):
        yield check.ok(f"{say.size(soft)} of memory may be locked")
    else:
        fix = (
            "docker run --ulimit memlock=-1 (in Kubernetes: the container runtime's LimitMEMLOCK=infinity)"
            if view.in_container()
            else "ulimit -l unlimited (as root, or '* - memlock unlimited' in /etc/security/limits.conf; systemd: "
            "LimitMEMLOCK=infinity)"
        )
        message = f"{say.size(soft)} of memory may be locked: RDMA needs {say.size(needed)}"
        message += f" with each of {devices} devices" if devices > 1 else ""
        if soft >= needed:
            yield check.warn(message, fix)
        elif view.names("sys/class/infiniband"):
            yield check.broken(message, fix, wanted=wants.rdma)
        else:
            yield check.missing(message, fix, wanted=wants.rdma)


def huge_pages(view: HostView, wants: Wants) -> Iterator[Finding]:
    """A large segment in small pages costs a NIC a table of millions of entries."""
    check = Check("hugepages")
    reserved = []
    for name in view.names("sys/kernel/mm/hugepages"):
        count = view.number(f"sys/kernel/mm/hugepages/{name}/nr_hugepages")
        if count:
            reserved.append(f"{count} of {name.removeprefix('hugepages-')}")
    mode = _chosen(view.read("sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    taken = f"; reserved, and not used by the pool: {', '.join(reserved)}" if reserved else ""
    if mode is None:
        yield check.ok(f"this kernel has no transparent huge pages for shared memory{taken}")
    elif mode in ("never", "deny", "advise"):
        yield check.ok(
            f"segments are in small pages (shmem_enabled is {mode}){taken}",
            "for large segments over RDMA: echo within_size | sudo tee "
            "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        )
    else:
        yield check.ok(f"segments may be in huge pages (shmem_enabled is {mode}){taken}")


def shared_memory(view: HostView, wants: Wants) -> Iterator[Finding]:
    """Segments are sealed memfds: neither /dev/shm nor System V's limits count."""
    check = Check("shm")
    wanted = "shm" in wants.fabrics
    if not hasattr(os, "memfd_create"):
        yield check.missing("this system has no memfd_create: shm is not offered", "use Linux", wanted=wanted)
        return
    if (view.number("proc/sys/vm/overcommit_memory") or 0) == 2:
        yield check.warn(
            "vm.overcommit_memory is 2: a segment counts as used at once, and may be refused",
            "sudo sysctl vm.overcommit_memory=0",
        )
    yield _socket_directory(view, wants, Check("shm.directory"), wanted)
    yield check.ok("segments can be shared (memfd; the size of /dev/shm does not matter)")


def _socket_directory(view: HostView, wants: Wants, check: Check, wanted: bool) -> Finding:
    """As the node chooses it; the last part is made by the node itself where it is not named."""
    runtime = view.environment.get("XDG_RUNTIME_DIR", "")
    if wants.shm_dir:
        parent = inside = wants.shm_dir
    elif runtime and view.exists(runtime.lstrip("/")):
        parent, inside = runtime, f"{runtime}/pykvpool"
    else:
        parent = view.environment.get("TMPDIR") or "/tmp"
        inside = f"{parent}/pykvpool-{view.uid}"
    choose = "export PYKVPOOL_NODE_SHM_DIR=DIRECTORY (a short path that this user owns)"
    if len(os.fsencode(inside)) + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES:
        return check.broken(f"{inside} is too long for a UNIX socket in it", choose, wanted=wanted)
    if not view.exists(parent.lstrip("/")):
        return check.broken(f"no directory for the socket of shm: {parent}", f"mkdir -p -m 700 {parent}", wanted=wanted)
    place = inside if view.exists(inside.lstrip("/")) else parent
    if not view.allowed(place.lstrip("/")):
        return check.broken(f"no permission to write in {place}, for the socket of shm", choose, wanted=wanted)
    return check.ok(f"the socket of shm will be in {inside}")


def open_files(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("files")
    soft, hard = view.limit(resource.RLIMIT_NOFILE)
    if soft != NO_LIMIT and soft < ENOUGH_FILES:
        most = "" if hard == NO_LIMIT or hard >= ENOUGH_FILES else f" (the hard limit is {hard}: raise it as root)"
        yield check.warn(f"{soft} files may be open: connections of many clients need more", f"ulimit -n 65536{most}")
    else:
        yield check.ok(f"{'any number of' if soft == NO_LIMIT else soft} files may be open")


def _chosen(text: str | None) -> str | None:
    """The word in brackets of a line such as ``always [madvise] never``."""
    if text is None:
        return None
    return next((word.strip("[]") for word in text.split() if word.startswith("[")), None)
