"""A simulated disk with files that are opened, read, written and synced by asynchronous calls, and every way to fail.

Calls take virtual time and take effect at a moment within it, also when the caller was cancelled meanwhile (a thread
that writes cannot be called back). Failures look as they do on Linux: `OSError` with EIO, ENOSPC, ENOENT or EBADF, and
reads and writes that do less than was asked. A failed sync leaves the pages marked clean although they never reached
the medium: syncing again says that all is well, and the data is gone at the next power cut (or `drop_caches`), which is
what Linux does.

What survives is `pykvpool_sim.platter`'s business. Paths are ``name`` or ``directory/name``.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pykvpool_sim.clock import NS_PER_S
from pykvpool_sim.draws import Draws
from pykvpool_sim.platter import Directory, Inode, MediaFaults, Platter

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """What may go wrong, as probabilities for each call. The default disk only forgets what is not synced."""

    read_error_ratio: float = 0.0
    write_error_ratio: float = 0.0
    #: The sync fails with EIO, and everything it should have written counts as clean from then on.
    sync_error_ratio: float = 0.0
    short_read_ratio: float = 0.0
    short_write_ratio: float = 0.0
    #: A power cut leaves a sector that was being written half old and half new.
    torn_sector_ratio: float = 0.0
    media: MediaFaults = field(default_factory=MediaFaults)
    #: Most bytes in files, in whole sectors; None: endless.
    capacity_bytes: int | None = None
    #: How long a call takes at most, in nanoseconds of virtual time; a sync takes ten times as long.
    latency_ns: int = 100_000


class Disk:
    """The disk of one host; outlives its processes."""

    def __init__(self, name: str, draws: Draws) -> None:
        self.name = name
        self.faults = DiskFaults()
        self._draws = draws
        self._platter = Platter()
        #: Rises with every crash: handles opened before are dead.
        self._epoch = 0

    # -- what processes do ---------------------------------------------------------------------------------------

    async def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. Raises `OSError` ENOENT where there is no such file, unless `create`."""
        return await self._call(lambda: self._open(path, create))

    async def rename(self, old: str, new: str) -> None:
        """`new` names the file from now on, instead of what it named. Durable, and atomic over a power cut, when the
        directories of both names were synced. Raises ENOENT."""
        await self._call(lambda: self._rename(old, new))

    async def unlink(self, path: str) -> None:
        """Raises ENOENT. Durable when the directory was synced."""
        await self._call(lambda: self._unlink(path))

    async def make_directory(self, path: str) -> None:
        """Harmless where it exists."""
        await self._call(lambda: self._platter.directories.setdefault(path, Directory()))

    async def names(self, directory: str = "") -> list[str]:
        """The names in a directory, sorted. Raises ENOENT."""
        return await self._call(lambda: sorted(self._directory(directory).cached))

    async def sync_directory(self, directory: str = "") -> None:
        """Make the names of a directory durable. Raises ENOENT, or EIO (then they are not)."""
        await self._call(lambda: self._sync_directory(directory), slow=True)

    # -- what befalls it -----------------------------------------------------------------------------------------

    def crash(self, *, power: bool) -> None:
        """Open handles are dead. With `power` the page cache is lost, see `pykvpool_sim.platter`."""
        self._epoch += 1
        if power:
            self._platter.power_cut(self._draws, self.faults.torn_sector_ratio)

    def wipe(self) -> None:
        """An empty disk."""
        self._epoch += 1
        self._platter = Platter()

    def drop_caches(self) -> None:
        """Memory is short: pages that count as clean are read from the medium next time."""
        for inode in self._platter.inodes():
            inode.forget_clean()

    def used_bytes(self) -> int:
        """What counts against `DiskFaults.capacity_bytes`."""
        return self._platter.used_bytes()

    # -- how -----------------------------------------------------------------------------------------------------

    async def _call(self, effect: Callable[[], T], *, slow: bool = False) -> T:
        """Take time, have the effect in the middle of it, take time."""
        epoch = self._epoch
        limit_ns = self.faults.latency_ns * (10 if slow else 1)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def happen() -> None:
            try:
                self._check_epoch(epoch)
                result = effect()
            except OSError as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        loop.call_later(self._draws.between(0, limit_ns) / NS_PER_S, happen)
        result = await done
        await asyncio.sleep(self._draws.between(0, limit_ns) / NS_PER_S)
        return result

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            raise _error(errno.EBADF, self.name)

    def _directory(self, path: str) -> Directory:
        directory = self._platter.directories.get(path)
        if directory is None:
            raise _error(errno.ENOENT, path)
        return directory

    def _find(self, path: str) -> tuple[Directory, str, Inode]:
        directory, name = self._place(path)
        inode = directory.cached.get(name)
        if inode is None:
            raise _error(errno.ENOENT, path)
        return directory, name, inode

    def _place(self, path: str) -> tuple[Directory, str]:
        folder, _, name = path.rpartition("/")
        return self._directory(folder), name

    def _open(self, path: str, create: bool) -> File:
        directory, name = self._place(path)
        if create and name not in directory.cached:
            directory.set(name, Inode())
        _, _, inode = self._find(path)
        return File(self, path, inode, self._epoch)

    def _rename(self, old: str, new: str) -> None:
        source, old_name, inode = self._find(old)
        target, new_name = self._place(new)
        target.set(new_name, inode)
        source.set(old_name, None)

    def _unlink(self, path: str) -> None:
        directory, name, _ = self._find(path)
        directory.set(name, None)

    def _sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        if self._draws.chance(self.faults.sync_error_ratio):
            raise _error(errno.EIO, path)
        directory.sync()


class File:
    """An open file. Ends with the process that opened it."""

    def __init__(self, disk: Disk, path: str, inode: Inode, epoch: int) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._epoch = epoch
        self._closed = False

    async def size(self) -> int:
        return await self._call(lambda: self._inode.cached_size)

    async def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes: fewer at the end of the file, or when the disk feels like it; none at the end only.
        Raises EIO."""
        return await self._call(lambda: self._read(offset, size))

    async def write_at(self, offset: int, data: bytes) -> int:
        """Writes the first bytes of `data`, at least one (if there is one), and returns how many. They are seen at once
        and durable after `sync`. Raises EIO or ENOSPC, and then nothing was written."""
        return await self._call(lambda: self._write(offset, data))

    async def truncate(self, size: int) -> None:
        """Cut, or extend with zeros. Durable after `sync`."""
        await self._call(lambda: self._inode.truncate(size))

    async def sync(self) -> None:
        """Content and size are durable (the name may not be: `Disk.sync_directory`). Raises EIO: what was to be written
        is neither durable nor will ever be, whatever later syncs say."""
        await self._call(self._sync, slow=True)

    async def close(self) -> None:
        """Says nothing about durability. Harmless twice."""
        self._closed = True

    async def _call(self, effect: Callable[[], T], *, slow: bool = False) -> T:
        if self._closed or self._epoch != self._disk._epoch:
            raise _error(errno.EBADF, self.path)
        return await self._disk._call(effect, slow=slow)

    def _read(self, offset: int, size: int) -> bytes:
        draws, faults = self._disk._draws, self._disk.faults
        if draws.chance(faults.read_error_ratio):
            raise _error(errno.EIO, self.path)
        data = self._inode.read(offset, size)
        if len(data) > 1 and draws.chance(faults.short_read_ratio):
            data = data[: draws.between(1, len(data) - 1)]
        return data

    def _write(self, offset: int, data: bytes) -> int:
        draws, faults = self._disk._draws, self._disk.faults
        if draws.chance(faults.write_error_ratio):
            raise _error(errno.EIO, self.path)
        if len(data) > 1 and draws.chance(faults.short_write_ratio):
            data = data[: draws.between(1, len(data) - 1)]
        if faults.capacity_bytes is not None:
            growth_bytes = max(0, offset + len(data) - self._inode.cached_size)
            if self._disk._platter.used_bytes() + growth_bytes > faults.capacity_bytes:
                raise _error(errno.ENOSPC, self.path)
        self._inode.write(offset, data)
        return len(data)

    def _sync(self) -> None:
        draws, faults = self._disk._draws, self._disk.faults
        if draws.chance(faults.sync_error_ratio):
            self._inode.dirty.clear()
            raise _error(errno.EIO, self.path)
        self._disk._platter.flush(self._inode, draws, faults.media)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
