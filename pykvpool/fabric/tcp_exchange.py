"""One share of a batch on one connection: what is sent, what comes back, and what is known when it breaks off.

A `Lane` is sent as one or more requests, all ahead, while responses are received: pipelined, no waiting in between.
Afterwards, however it ended, every operation has an outcome: from its status, or else from how far the sending had
come. A write of which a byte was handed to the kernel and that got no response is not settled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import xxhash

from pykvpool.errors import PoolError, ProtocolError
from pykvpool.fabric.base import Outcome, Read, Write
from pykvpool.fabric.cursor import Cursor
from pykvpool.fabric.tcp_socket import StreamSocket
from pykvpool.fabric.tcp_wire import (
    MAX_OPERATIONS,
    MAX_REQUEST_BYTES,
    RESPONSE_HEADER,
    Kind,
    RequestHeader,
    WireOperation,
    decode_response_header,
    decode_statuses,
    encode_request,
)
from pykvpool.model.ids import PutId


@dataclass(slots=True)
class Item:
    """One operation of a batch on its way."""

    #: Its place in the caller's batch.
    index: int
    operation: Read | Write
    outcome: Outcome | None = None
    #: Bytes that the lane sends before the first byte of this operation's payload.
    starts_at: int = 0
    running_sum: xxhash.xxh3_64 | None = None


@dataclass(slots=True)
class Lane:
    """Operations that travel on one connection, in order; those of a request are neighbours of one generation."""

    scheme: str
    kind: Kind
    items: list[Item]
    #: What is sent; rebuilt for each attempt.
    sending: Cursor = field(default_factory=Cursor)
    #: A response byte arrived: this attempt cannot be repeated.
    answered: bool = False

    @property
    def untouched(self) -> bool:
        """Nothing of it has begun: it may be tried on another connection (a read, as long as nothing was answered)."""
        return not self.answered and (self.kind is Kind.READ or self.sending.done_bytes == 0)

    async def exchange(self, stream: StreamSocket) -> None:
        """Send all requests and receive all responses. Raises `PoolError`; the connection is out of step then."""
        requests = list(_requests(self.items))
        self._prepare(requests)
        sent = stream.send(self.sending)
        for request_id, items in enumerate(requests):
            await self._receive(stream, request_id, items)
        await sent

    def settle(self, error: PoolError) -> None:
        """Give every operation that has no outcome yet the one that `error` leaves it with. The connection is gone."""
        for item in self.items:
            if item.outcome is None:
                begun = isinstance(item.operation, Write) and self.sending.done_bytes > item.starts_at
                item.outcome = Outcome(error=error, settled=not begun, scheme=self.scheme)

    def _prepare(self, requests: list[list[Item]]) -> None:
        self.sending = Cursor()
        for request_id, items in enumerate(requests):
            generation = items[0].operation.segment.generation
            entries = [_wire(item.operation) for item in items]
            head = encode_request(RequestHeader(self.kind, len(items), request_id, generation), entries)
            self.sending.add([memoryview(head)])
            for item in items:
                item.running_sum = xxhash.xxh3_64() if item.operation.want_checksum else None
                if self.kind is Kind.WRITE:
                    item.starts_at = self.sending.total_bytes
                    self.sending.add(item.operation.pieces, item.running_sum)

    async def _receive(self, stream: StreamSocket, request_id: int, items: list[Item]) -> None:
        """One response: statuses, then for a read the bytes."""
        header_data = await stream.receive_exactly(RESPONSE_HEADER.size)
        self.answered = True
        header = decode_response_header(header_data)
        errors = decode_statuses(header, await stream.receive_exactly(header.rest_bytes))
        if header.kind is Kind.FAREWELL:
            raise errors[0] or ProtocolError("the owner gave the connection up without a reason")
        if (header.kind, header.request_id, header.operations) != (self.kind, request_id, len(items)):
            raise ProtocolError("a response does not fit the request that is due")
        fine = [item for item, error in zip(items, errors, strict=True) if error is None]
        if self.kind is Kind.READ:
            arriving = Cursor()
            for item in fine:
                arriving.add(item.operation.pieces, item.running_sum)
            await stream.receive(arriving)
        for item, error in zip(items, errors, strict=True):
            summed = error is None and item.running_sum is not None
            checksum = item.running_sum.intdigest() if summed and item.running_sum is not None else None
            item.outcome = Outcome(error=error, checksum=checksum, scheme=self.scheme)


def lanes(scheme: str, kind: Kind, items: Sequence[Item], count: int) -> list[Lane]:
    """Share `items` out over at most `count` lanes of about equal bytes; neighbours stay together."""
    share = sum(item.operation.length for item in items) / count
    runs: list[list[Item]] = [[]]
    filled = 0
    for item in items:
        if runs[-1] and len(runs) < count and filled + item.operation.length / 2 >= share * len(runs):
            runs.append([])
        runs[-1].append(item)
        filled += item.operation.length
    return [Lane(scheme, kind, run) for run in runs]


def _requests(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Cut a lane into requests: one generation each, within the limits of a request."""
    request: list[Item] = []
    size = 0
    for item in items:
        operation = item.operation
        full = len(request) == MAX_OPERATIONS or size + operation.length > MAX_REQUEST_BYTES
        if request and (full or operation.segment.generation != request[0].operation.segment.generation):
            yield request
            request, size = [], 0
        request.append(item)
        size += operation.length
    yield request


def _wire(operation: Read | Write) -> WireOperation:
    put_id = operation.put_id if isinstance(operation, Write) else PutId(0)
    return WireOperation(operation.offset, operation.length, put_id)
