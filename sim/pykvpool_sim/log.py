"""An append-only log that keeps what it acknowledged, on a disk that does all that disks do.

It is the proof that `pykvpool_sim.disk` can be lived with, and the pattern for journals: small enough to see why each
step is there, and tests show that leaving any of them out loses data.

A file is a header and records. ::

    header   magic "KVL1", log id (8 random bytes), checksum over both (8)
    record   length (u32), checksum (8) over log id, sequence number, length and payload; payload

- **A checksum binds a record to its place**: a torn record, stale bytes of an earlier file, or a sector that belongs
  elsewhere do not pass. Recovery stops at the first record that does not pass.
- **`append` returns after `sync`.** If the sync fails nobody knows what is on the medium, and asking again would get a
  lie: the log is broken, and is opened anew.
- **Opening writes a new file**, of what was read, and syncs it before it takes the old one's name. So what a reader was
  shown is durable before it is shown, even if it was in the page cache only, and the lie of a failed sync ends here.
- **The directory is synced** before the first append: a name that is not durable takes its file along.

What the disk does wrong in silence (lost, misdirected, corrupt writes) cannot be undone with one copy: then what is
recovered is the true beginning of what was appended, possibly shorter, never another record.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import random
import struct
from typing import Protocol

from pykvpool_sim.errors import SimulationError

_MAGIC = b"KVL1"
_ID_BYTES = 8
_CHECKSUM_BYTES = 8
_HEADER_BYTES = len(_MAGIC) + _ID_BYTES + _CHECKSUM_BYTES
_LENGTH = struct.Struct("<I")
_PLACE = struct.Struct("<QI")
_RECORD_HEADER_BYTES = _LENGTH.size + _CHECKSUM_BYTES
#: Largest payload: a length beyond it is garbage, and is not read.
MAX_PAYLOAD_BYTES = 1 << 24
#: Bytes read at a time.
_READ_BYTES = 1 << 16
#: Reads that fail are tried this often: a medium error that stays is not survived by waiting.
_READ_ATTEMPTS = 3


class LogBroken(SimulationError):
    """An append did not end well: its record may be durable or not, and this log takes no more. Open it anew."""


class LogFile(Protocol):
    """What the log needs of a file; see `pykvpool_sim.disk.File` for what the calls promise."""

    async def read_at(self, offset: int, size: int) -> bytes: ...
    async def write_at(self, offset: int, data: bytes) -> int: ...
    async def sync(self) -> None: ...
    async def close(self) -> None: ...


class LogDisk(Protocol):
    """What the log needs of a disk."""

    async def open(self, path: str, *, create: bool = False) -> LogFile: ...
    async def rename(self, old: str, new: str) -> None: ...
    async def unlink(self, path: str) -> None: ...
    async def sync_directory(self, directory: str = "") -> None: ...


def checksum(log_id: bytes, sequence: int, payload: bytes) -> bytes:
    """Binds a payload to its log, its place and its length."""
    place = log_id + _PLACE.pack(sequence, len(payload))
    return hashlib.blake2b(place + payload, digest_size=_CHECKSUM_BYTES).digest()


class Log:
    """An open log. One task at a time appends."""

    def __init__(self, file: LogFile, log_id: bytes, records: list[bytes]) -> None:
        #: What was in it when it was opened, in order.
        self.recovered = tuple(records)
        self._file = file
        self._log_id = log_id
        self._sequence = len(records)
        self._end = _HEADER_BYTES + sum(_RECORD_HEADER_BYTES + len(record) for record in records)
        self._broken = False

    @classmethod
    async def open(cls, disk: LogDisk, path: str, random_source: random.Random) -> Log:
        """Recover what is there (nothing: an empty log) and make it durable. Raises `OSError`; trying again is safe."""
        records = await _read_all(disk, path)
        log_id = random_source.randbytes(_ID_BYTES)
        new_path = f"{path}.new"
        with contextlib.suppress(FileNotFoundError):
            # Of an opening that was cut short. Its pages may carry the lie of a failed sync.
            await disk.unlink(new_path)
        file = await disk.open(new_path, create=True)
        content = [_header(log_id)]
        content += [_record(log_id, sequence, payload) for sequence, payload in enumerate(records)]
        await _write_all(file, 0, b"".join(content))
        await file.sync()
        await disk.rename(new_path, path)
        await disk.sync_directory(path.rpartition("/")[0])
        return cls(file, log_id, records)

    async def append(self, payload: bytes) -> int:
        """Returns the record's number (from 0) when it is durable. Raises `OSError` where it was not written: the log
        is as before. Raises `LogBroken` where nobody knows; after that, or after a cancellation, nothing is taken."""
        if self._broken:
            raise LogBroken("an append failed or was cut short: open the log anew")
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ValueError(f"a payload of {len(payload):,} bytes is over the limit of {MAX_PAYLOAD_BYTES:,}")
        # Until all is done nobody knows. A cancelled append stays so: its write may happen late, over the next record.
        self._broken = True
        try:
            await _write_all(self._file, self._end, _record(self._log_id, self._sequence, payload))
        except OSError:
            self._broken = False  # every write has ended, and the next record overwrites what came of them
            raise
        try:
            await self._file.sync()
        except OSError as error:
            raise LogBroken(f"record {self._sequence} may be durable or not: {error}") from error
        self._broken = False
        number = self._sequence
        self._sequence += 1
        self._end += _RECORD_HEADER_BYTES + len(payload)
        return number

    async def close(self) -> None:
        """Everything acknowledged is durable already. Harmless twice."""
        await self._file.close()


def _header(log_id: bytes) -> bytes:
    return _MAGIC + log_id + hashlib.blake2b(_MAGIC + log_id, digest_size=_CHECKSUM_BYTES).digest()


def _record(log_id: bytes, sequence: int, payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + checksum(log_id, sequence, payload) + payload


async def _read_all(disk: LogDisk, path: str) -> list[bytes]:
    """The records of a file up to the first that does not pass; none where there is no file."""
    try:
        file = await disk.open(path)
    except FileNotFoundError:
        return []
    content = bytearray()
    while piece := await _read_piece(file, len(content)):
        content += piece
    await file.close()
    return parse(bytes(content))


def parse(content: bytes) -> list[bytes]:
    """The records in a file's bytes up to the first that does not pass."""
    log_id = content[len(_MAGIC) : len(_MAGIC) + _ID_BYTES]
    if content[:_HEADER_BYTES] != _header(log_id):
        return []
    records: list[bytes] = []
    start = _HEADER_BYTES
    while start + _RECORD_HEADER_BYTES <= len(content):
        (length,) = _LENGTH.unpack_from(content, start)
        body = start + _RECORD_HEADER_BYTES
        payload = content[body : body + length]
        if length > MAX_PAYLOAD_BYTES or len(payload) < length:
            break
        if content[start + _LENGTH.size : body] != checksum(log_id, len(records), payload):
            break
        records.append(payload)
        start = body + length
    return records


async def _read_piece(file: LogFile, offset: int) -> bytes:
    for attempt in range(1, _READ_ATTEMPTS + 1):
        try:
            return await file.read_at(offset, _READ_BYTES)
        except OSError as error:
            if error.errno != errno.EIO or attempt == _READ_ATTEMPTS:
                raise
    raise SimulationError("the last attempt neither returned nor raised")


async def _write_all(file: LogFile, offset: int, data: bytes) -> None:
    """However short the writes."""
    view = memoryview(data)
    while view:
        written = await file.write_at(offset, bytes(view))
        offset += written
        view = view[written:]
