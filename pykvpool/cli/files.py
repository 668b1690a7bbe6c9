"""Files in and out of the pool: read whole with a bound, written beside their name and renamed when complete.

An object lives in memory at both ends, so a file is read into one buffer before it is sent. A failed or interrupted get
leaves the old file as it was and nothing half written.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import aiofiles
import aiofiles.os

from pykvpool.cli import format as say
from pykvpool.cli.left_behind import LeftBehind
from pykvpool.errors import InvalidArgument, LimitExceeded

#: Largest file that `put` takes. KV blocks have kilobytes to megabytes; beyond this a mistaken path is likelier, and
#: both ends would hold it in memory.
MAX_FILE_BYTES = 1 << 30
#: Bytes read or written at a time: large enough for full speed, small enough for a lively progress bar.
CHUNK_BYTES = 4 << 20

#: Called with the bytes moved so far.
Moved = Callable[[int], None]


def size_of(path: str) -> int | None:
    """Bytes of a regular file, None where that is not known before reading (``-``, pipes). Raises OSError."""
    if path == "-":
        return None
    found = Path(path)
    if found.is_dir():
        raise InvalidArgument(f"{path} is a directory: put stores one file under one key")
    status = found.stat()
    return status.st_size if found.is_file() else None


async def read(path: str, moved: Moved) -> bytearray:
    """The whole file, or standard input for ``-``.

    Raises `InvalidArgument` where it is empty or a directory, `LimitExceeded`, OSError.
    """
    name = "standard input" if path == "-" else path
    size_bytes = size_of(path)
    if size_bytes is not None:
        _check_size(name, size_bytes)
    data = bytearray()
    source: str | int = sys.stdin.fileno() if path == "-" else path
    with _named(name):
        async with aiofiles.open(source, "rb", buffering=0, closefd=path != "-", executor=LeftBehind()) as file:
            while chunk := await file.read(CHUNK_BYTES):
                data += chunk
                _check_size(name, len(data), known=False)
                moved(len(data))
    if not data:
        raise InvalidArgument(f"{name} is empty: an object has at least one byte")
    return data


async def write(path: str, data: memoryview, moved: Moved) -> None:
    """Write `data` to a file (complete or not at all), or to standard output for ``-``. Raises OSError."""
    if not path:
        raise InvalidArgument("the output is empty: name the file to write, or - for standard output")
    with _named("standard output" if path == "-" else path):
        if path == "-":
            await _write_to(sys.stdout.fileno(), data, moved)
        elif _is_device(path):
            await _write_to(path, data, moved)
        else:
            await _write_beside(path, data, moved)


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """An OSError names what the user named: not nothing, nor the file beside it."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # one of the system
            error.filename = name
        raise


async def _write_beside(path: str, data: memoryview, moved: Moved) -> None:
    beside = f"{path}.{os.getpid()}.part"
    try:
        await _write_to(beside, data, moved)
        await aiofiles.os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):  # it was not made, or the error to tell is the first one
            await aiofiles.os.remove(beside)
        raise


def _is_device(path: str) -> bool:
    """/dev/null, a named pipe, ...: written in place. A directory is refused."""
    found = Path(path)
    if found.is_dir():
        raise InvalidArgument(f"{path} is a directory: name the file to write")
    return found.exists() and not found.is_file()


async def _write_to(target: str | int, data: memoryview, moved: Moved) -> None:
    async with aiofiles.open(target, "wb", buffering=0, closefd=isinstance(target, str), executor=LeftBehind()) as file:
        written = 0
        while written < len(data):
            written += await file.write(data[written : written + CHUNK_BYTES])
            moved(written)


def _check_size(name: str, size_bytes: int, known: bool = True) -> None:
    """`known`: it is the whole size, not what was read until now."""
    if size_bytes > MAX_FILE_BYTES:
        raise LimitExceeded(
            f"{name} has {'' if known else 'at least '}{say.size(size_bytes)}: "
            f"at most {say.size(MAX_FILE_BYTES)} are allowed",
            size_bytes=size_bytes,
            limit_bytes=MAX_FILE_BYTES,
        )
