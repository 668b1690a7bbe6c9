"""The peer's end of a line: requests and their answers, and what the owner says unasked.

One session serves all mounts of one owner. When its line ends, so do all queue pairs that were made over it, at both
ends; the links are told.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Protocol, TypeVar

from pykvpool.errors import Closed, Overloaded, PoolError, ProtocolError, Refused, Unavailable, from_code
from pykvpool.fabric.addresses import HostPort
from pykvpool.fabric.handshake import Identity, introduce
from pykvpool.fabric.rdma.line import Line
from pykvpool.fabric.rdma.settings import SCHEME
from pykvpool.fabric.rdma.wire import (
    Connect,
    Connected,
    Disconnect,
    Disconnected,
    Ended,
    Failed,
    Heard,
    Offer,
    Open,
    Said,
)
from pykvpool.fabric.tcp_dial import dial
from pykvpool.fabric.tcp_socket import HandshakeStream, StreamSocket
from pykvpool.model.ids import Generation
from pykvpool.runtime import Runtime, drain

log = logging.getLogger("pykvpool.fabric.rdma")

#: How long the owner's word is awaited that a queue pair is destroyed. Its loop answers within milliseconds; one that
#: does not leaves the writes in doubt.
DISCONNECT_S = 1.0

#: How long anything else may take: the owner's loop makes a queue pair in a millisecond, and TCP connects in a few
#: round trips. After this the owner counts as unreachable, so that a batch with a longer deadline can go another way.
ANSWER_S = 5.0
#: Ends remembered of handles that nobody has claimed yet: most are of lanes that we gave up ourselves meanwhile.
MAX_EARLY_ENDS = 1024

A = TypeVar("A", Offer, Connected, Disconnected)


class Listener(Protocol):
    """A link, as its session sees it."""

    def on_ended(self, handle: int, error: PoolError, again: bool) -> bool:
        """The owner destroyed a queue pair. False: it is none of this link's."""
        ...

    def on_line_lost(self, error: PoolError) -> None: ...


class Session:
    """Made by `connect`."""

    def __init__(self, endpoint: str, line: Line) -> None:
        self.endpoint = endpoint
        self._line = line
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Said]] = {}
        #: In order of arrival; values mean nothing.
        self._listeners: dict[Listener, None] = {}
        #: Handles that the owner ended before whoever asked for them has heard that they are his.
        self._ended_early: dict[int, tuple[PoolError, bool]] = {}
        self._reader = asyncio.get_running_loop().create_task(self._read(), name=f"pykvpool rdma session {endpoint}")

    @classmethod
    async def connect(cls, endpoint: str, identity: Identity, runtime: Runtime) -> Session:
        """Raises `Unavailable`, `Refused` or `ProtocolError`."""
        address = HostPort.parse(endpoint, SCHEME)
        try:
            async with asyncio.timeout(ANSWER_S):
                stream = StreamSocket(await dial(address, endpoint), asyncio.get_running_loop())
                try:
                    await introduce(HandshakeStream(stream), identity.handshake(runtime))
                except BaseException:
                    stream.close(Unavailable("the handshake did not end"))
                    raise
        except TimeoutError:
            raise Unavailable(f"{endpoint}: no answer within {ANSWER_S:g} s") from None
        except (Refused, ProtocolError, Overloaded) as error:
            raise type(error)(f"{endpoint}: {error.message}") from error
        return cls(endpoint, Line(stream))

    @property
    def failure(self) -> PoolError | None:
        """Why it is over; None: it is not."""
        return self._line.failure

    def attach(self, listener: Listener) -> None:
        self._listeners[listener] = None

    def detach(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)

    async def open(self, generation: Generation) -> Offer:
        """What the owner has of a mount. Raises what it says (`SegmentGone`, `Refused`), or why the line ended."""
        return await self._ask(Open(next(self._numbers), generation), Offer, ANSWER_S)

    async def connect_pair(self, ask: Connect) -> Connected:
        """A queue pair of the owner's for one of ours; `ask.request` is filled in here. Raises as `open`."""
        return await self._ask(ask, Connected, ANSWER_S)

    def next_number(self) -> int:
        return next(self._numbers)

    async def disconnect(self, handle: int) -> bool:
        """True: the owner's end is destroyed, nothing lands through it any more. False: nobody knows."""
        try:
            await self._ask(Disconnect(next(self._numbers), handle), Disconnected, DISCONNECT_S)
        except PoolError as error:
            log.debug("rdma: %s did not confirm that a queue pair is gone: %s", self.endpoint, error)
            return False
        return True

    def forget(self, handle: int) -> None:
        """As `disconnect`, where nobody waits for the word."""
        self._line.say(Disconnect(next(self._numbers), handle))

    def ended_early(self, handle: int) -> tuple[PoolError, bool] | None:
        """What the owner said of a handle that is new to the caller."""
        return self._ended_early.pop(handle, None)

    async def close(self, reason: PoolError) -> None:
        """Say what is left to say and hang up; the owner ends what belongs to this line."""
        await self._line.part(reason)
        await drain(self._reader)

    async def _ask(self, request: Open | Connect | Disconnect, answer: type[A], timeout_s: float) -> A:
        if self.failure is not None:
            raise self.failure
        future: asyncio.Future[Said] = asyncio.get_running_loop().create_future()
        self._waiting[request.request] = future
        self._line.say(request)
        try:
            async with asyncio.timeout(timeout_s):
                said = await future
        except TimeoutError:
            raise Unavailable(f"{self.endpoint}: no answer within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(request.request, None)
        if isinstance(said, Failed):
            raise from_code(said.code, f"{self.endpoint}: {said.message}")
        if not isinstance(said, answer):
            raise ProtocolError(f"{self.endpoint}: a {type(request).__name__} was answered by {type(said).__name__}")
        return said

    async def _read(self) -> None:
        error: PoolError = Unavailable(f"{self.endpoint}: the line is closed")
        try:
            while True:
                self._hear(await self._line.hear())
        except PoolError as raised:
            error = raised if isinstance(raised, Closed) else Unavailable(f"{self.endpoint}: {raised.message}")
        except asyncio.CancelledError:
            pass
        except Exception as failure:  # a bug must not leave transfers waiting for ever
            log.exception("rdma: the session with %s failed", self.endpoint)
            error = Unavailable(f"{self.endpoint}: the session failed: {type(failure).__name__}")
        self._line.end(error)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever asked may be gone by now
        for listener in list(self._listeners):
            listener.on_line_lost(error)

    def _remember_end(self, handle: int, error: PoolError, again: bool) -> None:
        self._ended_early[handle] = (error, again)
        if len(self._ended_early) > MAX_EARLY_ENDS:
            del self._ended_early[next(iter(self._ended_early))]

    def _hear(self, said: Said) -> None:
        match said:
            case Ended(code=code, message=message, again=again):
                error = from_code(code, message)
                self._line.say(Heard(said.number))
                for handle in said.handles:
                    if not any(listener.on_ended(handle, error, again) for listener in list(self._listeners)):
                        self._remember_end(handle, error, again)
            case Offer() | Connected() | Disconnected() | Failed():
                future = self._waiting.get(said.request)
                if future is not None and not future.done():
                    future.set_result(said)
                elif isinstance(said, Connected):
                    self.forget(said.handle)  # whoever asked has given up
            case _:
                raise ProtocolError(f"an owner said {type(said).__name__}")
