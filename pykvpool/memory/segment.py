"""A segment: memory that a node lends to the pool, one mount of it.

Normally it is a *memfd*: anonymous memory with a file descriptor, so that the shm fabric can pass it to another process
of the host. It is sealed against growing and shrinking: a map that a peer holds can never fault because of us. Every
segment draws a random *generation*; a remount is a new `MemorySegment`, so bytes of an earlier mount are never
reachable through a later one. Where memfd is missing or not wanted the memory is plain anonymous memory, without a
descriptor, which shm then does not offer.

It knows nothing of allocation, of fabrics, or of the master.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os

from pykvpool.errors import Closed, ConfigError
from pykvpool.memory.available import available_bytes
from pykvpool.model.ids import Generation
from pykvpool.runtime import Runtime

#: Largest segment: the address space that x86-64 and AArch64 give to one process, halved.
MAX_SEGMENT_BYTES = 1 << 46
#: madvise(2) advice of Linux 5.14: fault every page in now. Python's mmap module does not name it yet.
_MADV_POPULATE_WRITE = 23
#: What madvise answers when it cannot give us the pages, as opposed to not knowing the advice (EINVAL).
_NO_MEMORY = frozenset({errno.ENOMEM, errno.EFAULT, errno.ENOSPC})


class MemorySegment:
    """One mount of `size_bytes` (rounded up to whole pages) of zeroed memory; an `Exported` of `pykvpool.fabric.base`.

    `prefault` takes every page at once, so that no later write waits for, or dies of, memory that is not there.
    `shareable=False` asks for plain anonymous memory, without a descriptor.

    Raises:
        ConfigError: the size is out of range, or the memory cannot be had (says how much was asked and is there).
    """

    def __init__(
        self,
        size_bytes: int,
        runtime: Runtime,
        *,
        prefault: bool = False,
        shareable: bool = True,
        name: str = "segment",
    ) -> None:
        if not 0 < size_bytes <= MAX_SEGMENT_BYTES:
            raise ConfigError(
                f"a segment of {size_bytes} bytes: allowed are 1 to {MAX_SEGMENT_BYTES}", size_bytes=size_bytes
            )
        size_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        available = available_bytes()
        if available is not None and size_bytes > available:
            raise _no_memory(size_bytes, available)
        #: Random number of this mount; stated in every data request.
        self.generation = Generation(runtime.new_incarnation())
        self.size_bytes = size_bytes
        #: The memfd, -1: none. Ours to close.
        self._fd = _sealed_memfd(size_bytes, name) if shareable and hasattr(os, "memfd_create") else -1
        try:
            self._map = mmap.mmap(self._fd, size_bytes)
        except OSError as error:
            self._close_fd()
            raise _no_memory(size_bytes, available) from error
        #: The whole memory; None once closed.
        self._view: memoryview | None = memoryview(self._map)
        if prefault:
            try:
                _populate(self._map, self._fd, size_bytes)
            except OSError as error:
                self.close()
                raise _no_memory(size_bytes, available) from error

    @property
    def view(self) -> memoryview:
        """The whole memory, writable, format "B". Raises `Closed` after `close`."""
        if self._view is None:
            raise Closed("the segment is closed")
        return self._view

    @property
    def closed(self) -> bool:
        return self._view is None

    def fileno(self) -> int:
        """The memfd, -1 where there is none (anonymous or closed)."""
        return self._fd

    def close(self) -> None:
        """Give the memory back. Harmless twice. Slices that somebody still holds keep it alive until they go."""
        if self._view is None:
            return
        self._view.release()
        self._view = None
        with contextlib.suppress(BufferError):  # somebody holds a slice: the map goes with the last of them
            self._map.close()
        self._close_fd()

    def _close_fd(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _sealed_memfd(size_bytes: int, name: str) -> int:
    try:
        fd = os.memfd_create(f"pykvpool-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise ConfigError(f"cannot create shared memory for a segment: {error.strerror}") from error
    try:
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(fd)
        raise ConfigError(f"cannot size a segment of {size_bytes} bytes: {error.strerror}") from error
    return fd


def _populate(memory: mmap.mmap, fd: int, size_bytes: int) -> None:
    """Fault every page in; on kernels without the advice, allocate the pages at least (the first touch maps them)."""
    try:
        memory.madvise(_MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno in _NO_MEMORY:
            raise
        if fd >= 0:
            os.posix_fallocate(fd, 0, size_bytes)


def _no_memory(size_bytes: int, available: int | None) -> ConfigError:
    known = "unknown" if available is None else f"{available} bytes"
    return ConfigError(
        f"no memory for a segment of {size_bytes} bytes (available: {known}): lower segment_size",
        size_bytes=size_bytes,
        available_bytes=available,
    )
