"""From a list of addresses to an open session: connect, shake hands, and where that fails say all that was tried.

Addresses are tried in order, once each, and share the time there is. One that answers but refuses (wrong token) does
not end the search; one that says that the session to resume is over does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from pykvpool.errors import Closed, InvalidArgument, PoolError, ProtocolError, Refused, SessionExpired, Unavailable
from pykvpool.model.replies import Welcome
from pykvpool.protocol.frames import MAX_FRAME_BYTES
from pykvpool.protocol.handshake import ClientHandshake
from pykvpool.protocol.identity import Identity, token_key
from pykvpool.protocol.messages import NONCE_BYTES
from pykvpool.runtime import Runtime
from pykvpool.transport.base import Stream
from pykvpool.transport.registry import TransportRegistry

_HINT = "is `pykvpool master` running, and is this the address that it printed?"


@dataclass(frozen=True, slots=True)
class Dialled:
    """An open session on a stream that takes whole frames."""

    stream: Stream
    welcome: Welcome
    #: The cluster that this master serves.
    cluster: str
    address: str


class Dialler:
    """Knows where masters may be and how to prove who we are."""

    def __init__(
        self, addresses: Sequence[str], token: str | None, runtime: Runtime, transports: TransportRegistry
    ) -> None:
        if isinstance(addresses, str) or not addresses:
            raise InvalidArgument("addresses is a list with at least one, such as ['tcp://127.0.0.1:7000']")
        for address in addresses:
            transports.check(address)
        token_key(token)
        self.addresses = tuple(addresses)
        self._token = token
        self._runtime = runtime
        self._transports = transports

    async def dial(self, identity: Identity, timeout_s: float) -> Dialled:
        """Raises `SessionExpired` (the session to resume is over), `Refused` (the last word of those who answered), or
        `Unavailable` with every address and reason."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        failures: list[tuple[str, PoolError]] = []
        for position, address in enumerate(self.addresses):
            share_s = (deadline - loop.time()) / (len(self.addresses) - position)
            try:
                return await self._attempt(address, identity, share_s)
            except SessionExpired:
                raise
            except PoolError as error:
                failures.append((address, error))
        tried = "; ".join(f"{address}: {error.message}" for address, error in failures)
        refusals = [error for _, error in failures if isinstance(error, Refused)]
        if refusals:
            raise Refused(tried, **refusals[-1].fields)
        raise Unavailable(f"no master answers: {tried}; {_HINT}")

    async def _attempt(self, address: str, identity: Identity, timeout_s: float) -> Dialled:
        nonce = self._runtime.random.randbytes(NONCE_BYTES)
        handshake = ClientHandshake(identity, nonce, self._token)
        stream: Stream | None = None
        try:
            async with asyncio.timeout(timeout_s):
                stream = await self._transports.connect(address)
                welcome = await _shake_hands(stream, handshake)
                return Dialled(stream, welcome, handshake.cluster, address)
        except TimeoutError:
            if stream is None:
                raise Unavailable(f"timed out after {timeout_s:.1f} s: nothing answers there") from None
            stream.abort()
            raise Unavailable(
                f"timed out after {timeout_s:.1f} s: it takes connections but says nothing (not a pykvpool master?)"
            ) from None
        except PoolError as error:
            if stream is not None:
                _part(stream, handshake.farewell_for(error))
            if isinstance(error, ProtocolError):
                raise Unavailable(f"not a pykvpool master: {error.message}") from None
            raise
        except BaseException:
            if stream is not None:
                stream.abort()
            raise


async def _shake_hands(stream: Stream, handshake: ClientHandshake) -> Welcome:
    stream.send(handshake.start())
    while True:
        frame = await stream.recv()
        if frame is None:
            raise Unavailable("it closed the connection without a word (not a pykvpool master?)")
        answer = handshake.receive(frame)
        if answer is not None:
            stream.send(answer)
        if handshake.welcome is not None:
            stream.allow(MAX_FRAME_BYTES)
            return handshake.welcome


def _part(stream: Stream, farewell: bytes | None) -> None:
    """Tell the other end why, if it was we who refused, and close."""
    if farewell is not None:
        with contextlib.suppress(Closed):  # it may have hung up first
            stream.send(farewell)
    stream.close()
