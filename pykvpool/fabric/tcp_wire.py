"""The bytes of the tcp fabric after its handshake. Encoders and decoders only; all numbers little-endian.

A request is a header, one entry per operation, and for a write the payloads in that order. All operations of a request
go to one generation. The response, in the order of requests, is a header, one status per operation, the error texts,
and for a read the bytes of each operation that succeeded. So one batch is one request however many operations it has,
and both sides know after the tables where every following byte belongs.

A decoder raises `ProtocolError`: the stream is out of step then, and the connection is worth nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from pykvpool.errors import PoolError, ProtocolError, from_code
from pykvpool.fabric.checks import MAX_OFFSET
from pykvpool.model.ids import Generation, PutId

#: Operations in one request: tables of 96 KiB and 32 KiB, read with one call each.
MAX_OPERATIONS = 4096
#: Bytes moved by one request: bounds what a refused write makes the owner read and drop.
MAX_REQUEST_BYTES = 4 << 30
#: Longest error text, in bytes of UTF-8.
MAX_TEXT_BYTES = 512

REQUEST_MAGIC = b"KVPR"
RESPONSE_MAGIC = b"KVPA"
#: magic, kind, three zero bytes, operations, request id, generation.
REQUEST_HEADER = struct.Struct("<4sB3xIQQ")
#: offset, length, put_id (0 in a read).
OPERATION = struct.Struct("<QQQ")
#: magic, kind, three zero bytes, operations, request id, bytes of all error texts.
RESPONSE_HEADER = struct.Struct("<4sB3xIQI")
#: error code (0: fine), bytes of its text.
STATUS = struct.Struct("<iI")


class Kind(IntEnum):
    READ = 1
    WRITE = 2
    #: Only in responses: the owner gives the connection up; its one status says why.
    FAREWELL = 3


@dataclass(frozen=True, slots=True)
class RequestHeader:
    kind: Kind
    operations: int
    request_id: int
    generation: Generation


@dataclass(frozen=True, slots=True)
class WireOperation:
    offset: int
    length: int
    put_id: PutId


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    kind: Kind
    operations: int
    request_id: int
    text_bytes: int

    @property
    def rest_bytes(self) -> int:
        """Bytes of statuses and texts that follow."""
        return self.operations * STATUS.size + self.text_bytes


def encode_request(header: RequestHeader, operations: Sequence[WireOperation]) -> bytes:
    head = REQUEST_HEADER.pack(REQUEST_MAGIC, header.kind, len(operations), header.request_id, header.generation)
    return head + b"".join([OPERATION.pack(entry.offset, entry.length, entry.put_id) for entry in operations])


def decode_request_header(data: bytes | bytearray) -> RequestHeader:
    magic, kind, operations, request_id, generation = REQUEST_HEADER.unpack(data)
    if magic != REQUEST_MAGIC:
        raise ProtocolError("a request does not begin with its magic")
    if kind not in (Kind.READ, Kind.WRITE):
        raise ProtocolError(f"a request of unknown kind {kind}")
    if not 0 < operations <= MAX_OPERATIONS:
        raise ProtocolError(f"a request of {operations} operations: allowed are 1 to {MAX_OPERATIONS}")
    return RequestHeader(Kind(kind), operations, request_id, Generation(generation))


def decode_operations(data: bytes | bytearray) -> list[WireOperation]:
    entries = [WireOperation(offset, length, PutId(put_id)) for offset, length, put_id in OPERATION.iter_unpack(data)]
    total = sum(entry.length for entry in entries)
    if total > MAX_REQUEST_BYTES:
        raise ProtocolError(f"a request for {total} bytes: at most {MAX_REQUEST_BYTES}")
    if any(entry.offset > MAX_OFFSET for entry in entries):
        raise ProtocolError("an offset is out of range")
    return entries


def encode_response(kind: Kind, request_id: int, errors: Sequence[PoolError | None]) -> bytes:
    """Header, statuses and texts; what a read returns follows."""
    texts = [b"" if error is None else _clip(error.message) for error in errors]
    head = RESPONSE_HEADER.pack(RESPONSE_MAGIC, kind, len(errors), request_id, sum(map(len, texts)))
    statuses = [
        STATUS.pack(0 if error is None else error.code, len(text)) for error, text in zip(errors, texts, strict=True)
    ]
    return b"".join([head, *statuses, *texts])


def decode_response_header(data: bytes | bytearray) -> ResponseHeader:
    magic, kind, operations, request_id, text_bytes = RESPONSE_HEADER.unpack(data)
    if magic != RESPONSE_MAGIC:
        raise ProtocolError("a response does not begin with its magic")
    if kind not in tuple(Kind):
        raise ProtocolError(f"a response of unknown kind {kind}")
    if not 0 < operations <= MAX_OPERATIONS or text_bytes > operations * MAX_TEXT_BYTES:
        raise ProtocolError(f"a response of {operations} statuses and {text_bytes} bytes of text is over the limits")
    return ResponseHeader(Kind(kind), operations, request_id, text_bytes)


def decode_statuses(header: ResponseHeader, data: bytes | bytearray) -> list[PoolError | None]:
    """What follows a response header, as one error or None per operation."""
    errors: list[PoolError | None] = []
    start = header.operations * STATUS.size
    for code, length in STATUS.iter_unpack(data[:start]):
        text = bytes(data[start : start + length])
        if len(text) != length:
            raise ProtocolError("an error text is longer than the response")
        start += length
        errors.append(None if code == 0 else from_code(code, text.decode(errors="replace")))
    if start != len(data):
        raise ProtocolError("bytes are left over behind the error texts of a response")
    return errors


def _clip(text: str) -> bytes:
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore").encode()
