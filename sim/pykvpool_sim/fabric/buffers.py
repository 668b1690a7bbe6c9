"""Bytes of local buffers that are cut into pieces, as a NIC with a scatter/gather list reaches them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def take_bytes(pieces: Sequence[memoryview], start: int, length: int) -> bytes:
    """`length` bytes from position `start` of the pieces' run."""
    return b"".join(bytes(part) for part in _parts(pieces, start, length))


def put_bytes(pieces: Sequence[memoryview], start: int, data: bytes) -> None:
    """Write `data` at position `start` of the pieces' run."""
    done = 0
    for part in _parts(pieces, start, len(data)):
        part[:] = data[done : done + len(part)]
        done += len(part)


def _parts(pieces: Sequence[memoryview], start: int, length: int) -> Iterator[memoryview]:
    for piece in pieces:
        if start >= len(piece):
            start -= len(piece)
            continue
        part = piece[start : start + length]
        if len(part):
            yield part
        length -= len(part)
        start = 0
        if not length:
            return
