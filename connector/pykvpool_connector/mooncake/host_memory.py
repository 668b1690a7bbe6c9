"""`MooncakeHostMemAllocator` and `bind_to_numa_node`: host memory by address, and threads near it."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

from pykvpool.errors import InvalidArgument
from pykvpool.memory.copying import pinned
from pykvpool_connector.mooncake.calls import OK
from pykvpool_connector.mooncake.checks import integer

_NODES = Path("/sys/devices/system/node")


class MooncakeHostMemAllocator:
    """Gives whole pages of zeroed memory by address; they live until they are freed or the allocator goes."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}
        self._lock = threading.Lock()

    def alloc(self, size: int) -> int:
        """Address of `size` bytes, 0 where they cannot be had."""
        length = integer("size", size)
        if length <= 0:
            return 0
        try:
            memory = mmap.mmap(-1, length)
        except (OSError, OverflowError):
            return 0
        with pinned(memory, writable=True) as address:
            pass
        with self._lock:
            self._maps[address] = memory
        return address

    def free(self, ptr: int) -> int:
        """Give memory back: 0, or -600 for an address that `alloc` did not give."""
        with self._lock:
            memory = self._maps.pop(integer("ptr", ptr), None)
        if memory is None:
            return InvalidArgument.code
        memory.close()
        return OK


def bind_to_numa_node(node: int) -> None:
    """Run the calling thread on the CPUs of a NUMA node; memory that it touches first comes from there then.

    Without such a node (or a kernel that tells) nothing changes.
    """
    try:
        text = (_NODES / f"node{integer('node', node)}" / "cpulist").read_text("ascii")
    except OSError:
        return
    cpus = cpu_numbers(text)
    if cpus:
        os.sched_setaffinity(0, cpus)


def cpu_numbers(text: str) -> set[int]:
    """The numbers of a kernel's list such as ``0-3,8``."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers
