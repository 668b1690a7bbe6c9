"""What a disk holds, twice: as processes see it (the page cache) and as it would be found after a power cut.

Data moves from the one to the other sector by sector, names entry by entry, and nothing moves unless someone syncs; a
power cut moves a random part of the rest. The rules, which are the least that POSIX leaves one with:

- A sector that was written and not synced may be found old, new, or, where sectors can tear, half and half.
- The size of a file that was not synced may be found old or new; what was never written there reads as zeros.
- Of the changes to one directory entry that were not synced, the first few are found. A rename changes two entries, the
  old name's and the new one's: until the directory is synced it may be found done, undone, or half done either way.
- A new file whose entry survived but whose data was not synced is found empty or full of zeros.

This module knows no time, no tasks and no error numbers; `pykvpool_sim.disk` adds them. Directories themselves are
durable as soon as they are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pykvpool_sim.draws import Draws

#: What a disk writes in one piece, if it keeps its word.
SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class MediaFaults:
    """What a disk does wrong in silence, as probabilities for each sector that it writes."""

    #: Reported as written, never written.
    lost_write_ratio: float = 0.0
    #: Written in the place of another sector of the disk.
    misdirected_write_ratio: float = 0.0
    #: One bit comes out wrong.
    corrupt_write_ratio: float = 0.0


@dataclass(slots=True)
class Inode:
    """One file's content. Both arrays are padded with zeros to whole sectors."""

    cached: bytearray = field(default_factory=bytearray)
    cached_size: int = 0
    durable: bytearray = field(default_factory=bytearray)
    durable_size: int = 0
    #: Sectors of `cached` that a sync would write, in the order in which they were first written.
    dirty: dict[int, None] = field(default_factory=dict)

    def write(self, offset: int, data: bytes) -> None:
        """Into the page cache."""
        _pad(self.cached, offset + len(data))
        self.cached[offset : offset + len(data)] = data
        self.cached_size = max(self.cached_size, offset + len(data))
        self._touch(offset, offset + len(data))

    def read(self, offset: int, size: int) -> bytes:
        """From the page cache."""
        return bytes(self.cached[offset : min(offset + size, self.cached_size)])

    def truncate(self, size: int) -> None:
        """Shorter: what follows is zeros if it ever comes back. Longer: zeros."""
        _pad(self.cached, size)
        self.cached[size:] = bytes(len(self.cached) - size)
        self._touch(size, self.cached_size)
        self.cached_size = size

    def put_durable(self, sector: int, content: bytes) -> None:
        """The head of the disk writes one sector."""
        start = sector * SECTOR_BYTES
        _pad(self.durable, start + SECTOR_BYTES)
        self.durable[start : start + SECTOR_BYTES] = content

    def sector(self, sector: int) -> bytes:
        """A sector of the page cache."""
        start = sector * SECTOR_BYTES
        return bytes(self.cached[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")

    def old_sector(self, sector: int) -> bytes:
        """A sector as it is on the medium."""
        start = sector * SECTOR_BYTES
        return bytes(self.durable[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")

    def forget_clean(self) -> None:
        """The page cache drops what it need not write: it is read again from the medium."""
        kept = {sector: self.sector(sector) for sector in self.dirty}
        size = self.cached_size
        self._reload()
        _pad(self.cached, size)
        self.cached_size = size
        for sector, content in kept.items():
            self.cached[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES] = content

    def power_cut(self, draws: Draws, torn_sector_ratio: float) -> None:
        """A random part of what is dirty is found written; then the page cache is what is on the medium."""
        kept_ratio = draws.random()
        for sector in self.dirty:
            if draws.chance(kept_ratio):
                content = self.sector(sector)
                if draws.chance(torn_sector_ratio):
                    written_bytes = draws.between(1, SECTOR_BYTES - 1)
                    content = content[:written_bytes] + self.old_sector(sector)[written_bytes:]
                self.put_durable(sector, content)
        if self.durable_size != self.cached_size and draws.chance(kept_ratio):
            self.durable_size = self.cached_size
        # What lies behind the end is never seen again: a file that grows back grows zeros.
        _pad(self.durable, self.durable_size)
        self.durable[self.durable_size :] = bytes(len(self.durable) - self.durable_size)
        self.dirty.clear()
        self._reload()

    def _reload(self) -> None:
        self.cached = bytearray(self.durable)
        self.cached_size = self.durable_size

    def _touch(self, start: int, end: int) -> None:
        for sector in range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            self.dirty.setdefault(sector)


@dataclass(slots=True)
class Directory:
    """Names of one directory."""

    cached: dict[str, Inode] = field(default_factory=dict)
    durable: dict[str, Inode] = field(default_factory=dict)
    #: Changes since the last sync, in order: a name and what it names from then on (None: nothing).
    pending: list[tuple[str, Inode | None]] = field(default_factory=list)

    def set(self, name: str, inode: Inode | None) -> None:
        """Link, replace or unlink."""
        _assign(self.cached, name, inode)
        self.pending.append((name, inode))

    def sync(self) -> None:
        self.durable = dict(self.cached)
        self.pending.clear()

    def power_cut(self, draws: Draws) -> None:
        """For each name the first few of its changes are found."""
        for name in dict.fromkeys(name for name, _ in self.pending):
            changes = [inode for changed, inode in self.pending if changed == name]
            kept_count = draws.between(0, len(changes))
            if kept_count:
                _assign(self.durable, name, changes[kept_count - 1])
        self.pending.clear()
        self.cached = dict(self.durable)


class Platter:
    """All files and directories of one disk."""

    def __init__(self) -> None:
        self.directories: dict[str, Directory] = {"": Directory()}

    def inodes(self) -> list[Inode]:
        """Every file that has a name, or may be found under one after a power cut, in a fixed order."""
        found: dict[int, Inode] = {}
        for directory in self.directories.values():
            changed = [inode for _, inode in directory.pending if inode is not None]
            for inode in (*directory.cached.values(), *directory.durable.values(), *changed):
                found.setdefault(id(inode), inode)
        return list(found.values())

    def used_bytes(self) -> int:
        """Whole sectors of the files as processes see them."""
        return sum(
            -(-inode.cached_size // SECTOR_BYTES) * SECTOR_BYTES
            for directory in self.directories.values()
            for inode in directory.cached.values()
        )

    def flush(self, inode: Inode, draws: Draws, faults: MediaFaults) -> None:
        """A sync that works, as far as anybody can tell."""
        for sector in inode.dirty:
            content = inode.sector(sector)
            if draws.chance(faults.lost_write_ratio):
                continue
            if draws.chance(faults.corrupt_write_ratio):
                content = _flip_a_bit(content, draws)
            if draws.chance(faults.misdirected_write_ratio):
                self._write_elsewhere(content, draws)
            else:
                inode.put_durable(sector, content)
        inode.durable_size = inode.cached_size
        _pad(inode.durable, inode.durable_size)
        inode.dirty.clear()

    def power_cut(self, draws: Draws, torn_sector_ratio: float) -> None:
        for inode in self.inodes():
            inode.power_cut(draws, torn_sector_ratio)
        for directory in self.directories.values():
            directory.power_cut(draws)

    def _write_elsewhere(self, content: bytes, draws: Draws) -> None:
        victims = [inode for inode in self.inodes() if inode.durable]
        if victims:
            victim = draws.choice(victims)
            victim.put_durable(draws.randrange(len(victim.durable) // SECTOR_BYTES), content)


def _assign(names: dict[str, Inode], name: str, inode: Inode | None) -> None:
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


def _pad(content: bytearray, size: int) -> None:
    """Zeros up to the whole sector that holds byte `size` - 1."""
    missing = -(-size // SECTOR_BYTES) * SECTOR_BYTES - len(content)
    if missing > 0:
        content.extend(bytes(missing))


def _flip_a_bit(content: bytes, draws: Draws) -> bytes:
    position = draws.randrange(len(content) * 8)
    changed = bytearray(content)
    changed[position // 8] ^= 1 << (position % 8)
    return bytes(changed)
