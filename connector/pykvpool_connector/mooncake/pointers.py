"""Memory that a program names by address: registered first, checked ever after.

A number is no proof of anything, so it is checked twice: when it is registered, the kernel's map of this process must
show readable and writable memory over its whole length (a wild pointer, or memory of a GPU, is an error there and not a
crash later); and in every transfer the range must lie within one registered buffer. What cannot be checked is that the
memory stays: who frees it before `unregister` gets what such programs get.
"""

from __future__ import annotations

import threading
from pathlib import Path

from pykvpool.errors import InvalidArgument
from pykvpool.memory.buffers import BufferRegistry, RegisteredBuffer
from pykvpool.memory.copying import bytes_at
from pykvpool_connector.mooncake.checks import integer

_MAPS = Path("/proc/self/maps")


class Pointers:
    """The registered memory of one store. Any thread may call."""

    def __init__(self) -> None:
        self._registry = BufferRegistry()
        self._by_address: dict[int, RegisteredBuffer] = {}
        self._lock = threading.Lock()

    def register(self, address: object, size: object) -> None:
        """Take ``[address, address + size)`` in. Raises `InvalidArgument`: NULL, no memory, overlap, twice."""
        start, length = integer("buffer_ptr", address), integer("size", size)
        if start <= 0 or length <= 0:
            raise InvalidArgument(f"a buffer of {length} bytes at {start:#x}: address and size must be positive")
        if not is_own_memory(start, length):
            raise InvalidArgument(
                f"the {length} bytes at {start:#x} are not readable and writable host memory of this process"
            )
        with self._lock:
            if start in self._by_address:
                raise InvalidArgument(f"a buffer at {start:#x} is registered already")
            self._by_address[start] = self._registry.register(bytes_at(start, length, None))

    def unregister(self, address: object) -> None:
        """Give a buffer back. Raises `InvalidArgument` where no registered one begins at `address`."""
        start = integer("buffer_ptr", address)
        with self._lock:
            registered = self._by_address.pop(start, None)
            if registered is None:
                raise InvalidArgument(f"no buffer at {start:#x} is registered")
            self._registry.unregister(registered)

    def find(self, address: object, size: object) -> memoryview:
        """The `size` bytes at `address`. Raises `InvalidArgument` unless they lie within one registered buffer."""
        start, length = integer("buffer_ptr", address), integer("size", size)
        with self._lock:
            return self._registry.find(start, length)


def is_own_memory(address: int, length: int, maps: Path = _MAPS) -> bool:
    """Whether all of ``[address, address + length)`` is mapped here, readable and writable."""
    position, end = address, address + length
    for line in maps.read_text("ascii", "replace").splitlines():  # in order of address
        span, rights = line.split(" ", 2)[:2]
        first, _, last = span.partition("-")
        if int(last, 16) <= position:
            continue
        if int(first, 16) > position or not rights.startswith("rw"):
            return False
        position = int(last, 16)
        if position >= end:
            return True
    return False
