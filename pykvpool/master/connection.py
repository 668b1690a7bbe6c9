"""One control connection at the master: handshake, then frames in and frames out.

It knows the protocol and one stream. What a request means and who holds which session it leaves to the `House` it
belongs to. Whatever is wrong with a connection ends that connection and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

from pykvpool.errors import Closed, DeadlineExceeded, LimitExceeded, Overloaded, PoolError
from pykvpool.model.ids import RequestId, SessionId
from pykvpool.model.instructions import Instruction
from pykvpool.model.replies import ErrorInfo, Reply, Welcome
from pykvpool.protocol.codec import Unreadable, decode_to_master, encode
from pykvpool.protocol.frames import MAX_FRAME_BYTES
from pykvpool.protocol.handshake import MasterHandshake
from pykvpool.protocol.identity import printable
from pykvpool.protocol.messages import (
    NO_SESSION,
    Farewell,
    HelloFrame,
    InstructionFrame,
    Parting,
    ReplyFrame,
    RequestFrame,
)
from pykvpool.transport.base import Stream

log = logging.getLogger("pykvpool.master")

#: From connecting to being admitted.
HANDSHAKE_TIMEOUT_S = 5.0
#: Requests handled, and bytes of them, before other connections and timers get a turn of the loop: about a millisecond.
REQUESTS_PER_TURN = 32
REQUEST_BYTES_PER_TURN = 128 << 10


class House(Protocol):
    """What a connection needs of the server."""

    def admit(self, connection: Connection, hello: HelloFrame) -> None:
        """Ask the core for a session; leads to `Connection.welcome` or `Connection.refuse`."""
        ...

    def request(self, connection: Connection, frame: RequestFrame) -> None: ...

    def ended(self, connection: Connection) -> None: ...


class Connection:
    """Made for each accepted stream; `run` lives as long as it does."""

    def __init__(self, number: int, stream: Stream, house: House, handshake: MasterHandshake) -> None:
        #: The shell's number for it, which addresses the core's welcome.
        self.number = number
        self.stream = stream
        #: `NO_SESSION` until it is admitted.
        self.session: SessionId = NO_SESSION
        self.name = ""
        #: It was told to go, and gets nothing any more.
        self.parted = False
        #: The master's life in which the session began that it wants back (0: it wants none).
        self.resumes_epoch = 0
        self._house = house
        self._handshake = handshake
        #: Done when the core has decided: None, or the error with which it refused.
        self._decided: asyncio.Future[PoolError | None] = asyncio.get_running_loop().create_future()

    def __str__(self) -> str:
        hello = self._handshake.hello
        claimed = f"somebody who says to be {hello.name!r}" if hello is not None else "somebody"
        return f"{self.name or claimed} at {self.stream.peer}"

    async def run(self) -> None:
        """Until the connection ends, whichever way."""
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await self._shake_hands()
        except TimeoutError:
            self.part(DeadlineExceeded(f"no handshake within {HANDSHAKE_TIMEOUT_S:g} s"))
        except PoolError as error:
            log.warning("no session for %s: %s", self, error)
            farewell = self._handshake.farewell_for(error)
            if farewell is not None:
                self._send(farewell)
        else:
            await self._serve()
        finally:
            self.stream.close()
            self._house.ended(self)
            await self.stream.wait_closed()

    # -- what the server calls ------------------------------------------------------------------------------------

    def welcome(self, welcome: Welcome) -> None:
        """The core opened or resumed a session for it."""
        self.session = welcome.session
        self.stream.allow(MAX_FRAME_BYTES)
        self._send(self._handshake.accept(welcome))
        self._decide(None)

    def refuse(self, error: PoolError, parting: Parting = Parting.NONE) -> None:
        """It gets no session."""
        self._decide(self._handshake.refuse(error, parting))

    def reply(self, request_id: RequestId, reply: Reply) -> None:
        frame = encode(ReplyFrame(request_id, reply))
        try:
            self._send(frame)
        except LimitExceeded as error:
            self._send(encode(ReplyFrame(request_id, ErrorInfo.of(error))))

    def instruct(self, instruction: Instruction) -> None:
        self._send(encode(InstructionFrame(instruction)))

    def part(self, error: PoolError, parting: Parting = Parting.NONE) -> None:
        """Say why and close."""
        log.info("parting from %s: %s", self, error)
        self._send(encode(Farewell(error.code, error.message, parting)))
        self.stream.close()
        self.parted = True
        self._decide(error)

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _shake_hands(self) -> None:
        while not self._handshake.proved:
            frame = await self.stream.recv()
            if frame is None:
                raise Closed("it hung up during the handshake")
            answer = self._handshake.receive(frame)
            if answer is not None:
                self._send(answer)
        hello = self._handshake.hello
        if hello is not None:
            self.name = hello.name
            self.resumes_epoch = hello.epoch if hello.resume else 0
            self._house.admit(self, hello)
            error = await self._decided
            if error is not None:
                raise error

    async def _serve(self) -> None:
        requests = request_bytes = 0
        try:
            while (frame := await self.stream.recv()) is not None:
                if self.parted:
                    return  # what was read before is void: the session may be answered elsewhere by now
                match decode_to_master(frame):
                    case RequestFrame() as request:
                        self._house.request(self, request)
                    case Unreadable(request_id=request_id, error=error):
                        log.warning("a bad request of %s: %s", self, error)
                        self.reply(request_id, ErrorInfo.of(error))
                    case Farewell(message=message):
                        log.info("%s says farewell: %s", self, printable(message))
                        return
                await self.stream.drain()  # who does not take answers is not asked for more
                requests, request_bytes = requests + 1, request_bytes + len(frame)
                if requests >= REQUESTS_PER_TURN or request_bytes >= REQUEST_BYTES_PER_TURN:
                    requests = request_bytes = 0
                    await asyncio.sleep(0)
        except PoolError as error:
            log.warning("cut %s: %s", self, error)
            self.part(error)

    def _decide(self, error: PoolError | None) -> None:
        if not self._decided.done():
            self._decided.set_result(error)

    def _send(self, frame: bytes) -> None:
        """A peer that is gone is noticed by the reader; one that does not read is cut."""
        try:
            with contextlib.suppress(Closed):
                self.stream.send(frame)
        except Overloaded as error:
            log.warning("cut %s: %s", self, error)
            self.stream.abort()
