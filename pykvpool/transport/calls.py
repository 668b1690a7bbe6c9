"""The bookkeeping of calls in one session: numbers, what is in flight, what has been acknowledged, what to send again.

No I/O and no waiting: `ControlSession` asks for the next frame while its stream has room, and reports answers. Calls
are numbered when they are first sent, so numbers rise in the order on the wire. A call keeps its frame until it is
answered; after a cut connection the same bytes go out again, and the master answers a repeat without carrying it out
twice.

What a call's owner gave up on (timeout, cancellation) stays in flight, ownerless: its number must not be used again,
and its answer may have to be undone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from pykvpool.errors import LimitExceeded, Overloaded, PoolError
from pykvpool.model.commands import Command
from pykvpool.model.ids import RequestId
from pykvpool.model.replies import Reply
from pykvpool.protocol.codec import encode
from pykvpool.protocol.frames import frame_header
from pykvpool.protocol.messages import RequestFrame

#: Requests sent and not answered. Half of what a master keeps per session (in flight, and answers not acknowledged).
MAX_IN_FLIGHT = 512
#: Bytes of them: resending after a cut connection must fit in memory.
MAX_IN_FLIGHT_BYTES = 64 << 20
#: Calls that wait for a place; more are `Overloaded`.
MAX_QUEUED_CALLS = 65_536

_UNSENT = RequestId(0)


@dataclass(slots=True, eq=False)
class Call:
    """One command on its way."""

    command: Command
    #: Who waits; None: nobody any more (or from the beginning: heartbeats).
    owner: asyncio.Future[Reply] | None
    request_id: RequestId = _UNSENT
    #: The encoded request, from the first sending until the answer.
    frame: bytes = b""


class CallTable:
    """All calls of one session."""

    def __init__(self) -> None:
        self._last_id = 0
        #: Numbered and unanswered, rising.
        self._in_flight: dict[int, Call] = {}
        self._in_flight_bytes = 0
        #: Not numbered yet, oldest first.
        self._queue: deque[Call] = deque()
        #: How many in `_queue` have lost their owner; swept out when they are the greater part.
        self._ownerless = 0
        #: Sent on an earlier connection, to be sent again on this one.
        self._again: deque[Call] = deque()
        #: Answers that arrived out of order and that the master has not been told of.
        self._untold: list[RequestId] = []

    @property
    def waiting(self) -> bool:
        """Something could be sent but for the stream or the window."""
        return bool(self._queue or self._again)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def add(self, command: Command, owner: asyncio.Future[Reply]) -> Call:
        """Queue a command. Raises `Overloaded`."""
        if len(self._queue) - self._ownerless >= MAX_QUEUED_CALLS:
            raise Overloaded(
                f"{MAX_QUEUED_CALLS:,} calls wait for the master already: make fewer at once", limit=MAX_QUEUED_CALLS
            )
        call = Call(command, owner)
        self._queue.append(call)
        return call

    def next_frame(self) -> bytes | None:
        """The next request to send; None where there is none or the window is full."""
        while self._again:
            call = self._again.popleft()
            if call.request_id in self._in_flight:
                return call.frame
        while self._queue and not self._full():
            call = self._queue.popleft()
            if call.owner is None:
                self._ownerless -= 1
                continue
            try:
                return self._launch(call)
            except LimitExceeded as error:
                _fail(call, error)
        return None

    def frame_at_once(self, command: Command, owner: asyncio.Future[Reply] | None = None) -> bytes:
        """A request that passes all others and the window: a heartbeat, a goodbye."""
        return self._launch(Call(command, owner))

    def answer(self, request_id: RequestId) -> Call | None:
        """An answer arrived: the call it belongs to; None for one that was answered before."""
        call = self._in_flight.pop(request_id, None)
        if call is not None:
            self._in_flight_bytes -= len(call.frame)
            self._untold.append(request_id)
        return call

    def give_up(self, call: Call) -> None:
        """Its owner no longer waits."""
        call.owner = None
        if call.request_id == _UNSENT:
            self._ownerless += 1
            if 2 * self._ownerless > len(self._queue):
                self._queue = deque(waiting for waiting in self._queue if waiting.owner is not None)
                self._ownerless = 0

    def reconnected(self) -> None:
        """What is unanswered has to be sent again."""
        self._again = deque(self._in_flight.values())

    def fail_all(self, error: PoolError) -> None:
        """Every call ends with `error`; the table is empty then."""
        doomed = [*self._in_flight.values(), *self._queue]
        self._in_flight.clear()
        self._queue.clear()
        self._again.clear()
        self._in_flight_bytes = self._ownerless = 0
        for call in doomed:
            _fail(call, error)

    def _full(self) -> bool:
        return len(self._in_flight) >= MAX_IN_FLIGHT or self._in_flight_bytes >= MAX_IN_FLIGHT_BYTES

    def _launch(self, call: Call) -> bytes:
        """Number and encode; raises `LimitExceeded` (nothing changed) for what no master would accept."""
        request_id = RequestId(self._last_id + 1)
        oldest = next(iter(self._in_flight), request_id)
        acknowledged = RequestId(oldest - 1)
        received = tuple(number for number in self._untold if number > acknowledged)
        frame = encode(RequestFrame(request_id, acknowledged, call.command, received))
        frame_header(len(frame))
        self._untold.clear()
        self._last_id = request_id
        call.request_id, call.frame = request_id, frame
        self._in_flight[request_id] = call
        self._in_flight_bytes += len(frame)
        return frame


def _fail(call: Call, error: PoolError) -> None:
    if call.owner is not None and not call.owner.done():
        call.owner.set_exception(type(error)(error.message, **error.fields))
