"""The peer's end of the shm fabric: maps an owner's segments once, then copies on its own, without asking anybody.

The control word is looked at before and after every batch, so a withdrawn generation is `SegmentGone` at once. Copies
are `local`'s: offload threads, no GIL, checksums on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pykvpool.errors import Closed, Unavailable
from pykvpool.fabric.addresses import endpoint_of, host_id
from pykvpool.fabric.base import Outcome, Peer, Read, Write
from pykvpool.fabric.handshake import Identity
from pykvpool.fabric.local import LocalMemory, LocalMover
from pykvpool.fabric.shm_session import ShmSession
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import Runtime

SCHEME = "shm"
COST = 10
#: Asking an owner for a map takes three round trips within this host; one that does not answer in this time hangs, and
#: another way or replica is tried. What is mapped already needs no answer.
ANSWER_S = 3.0


class ShmClient:
    """Reads and writes mounts of owners on this host. Arguments as for `TcpClient`."""

    scheme = SCHEME
    cost = COST

    def __init__(self, peer: Peer, runtime: Runtime, *, cluster: str = "", token: str | None = None) -> None:
        self._identity = Identity(peer, cluster, token.encode() if token else None)
        self._runtime = runtime
        self._mover = LocalMover(SCHEME, peer, runtime.offload)
        self._sessions: dict[str, ShmSession] = {}
        #: One connects at a time per owner; the others use what it got.
        self._connecting: dict[str, asyncio.Lock] = {}
        self._closed = False

    def reaches(self, segment: SegmentDescriptor) -> str | None:
        """Its shm endpoint if that is on this host and for this user."""
        endpoint = endpoint_of(segment.endpoints, SCHEME)
        return endpoint if endpoint is not None and endpoint.startswith(f"{SCHEME}://{host_id()}/") else None

    async def read(self, batch: Sequence[Read], timeout_s: float) -> list[Outcome]:
        return await self._mover.move(batch, timeout_s, self._open)

    async def write(self, batch: Sequence[Write], timeout_s: float) -> list[Outcome]:
        return await self._mover.move(batch, timeout_s, self._open)

    async def map_view(self, segment: SegmentDescriptor, offset: int, length: int) -> memoryview | None:
        """A read-only view of the segment itself, no copy; None where shm does not reach it.

        The lease vouches for the bytes, not the view. Raises `SegmentGone`, `InvalidArgument` (bounds), or why the
        owner could not be asked (`Unavailable`, `Refused`).
        """
        if self.reaches(segment) is None:
            return None
        return self._mover.view(await self._open(segment), segment, offset, length)

    async def close(self) -> None:
        self._closed = True
        await self._mover.close()
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()

    async def _open(self, segment: SegmentDescriptor) -> LocalMemory:
        endpoint = self.reaches(segment)
        if endpoint is None:
            raise Unavailable(f"segment {segment.segment} is not reachable by shm from this host")
        try:
            async with asyncio.timeout(ANSWER_S):
                return await (await self._session(endpoint)).map(segment.generation)
        except TimeoutError:
            raise Unavailable(f"{endpoint}: the owner did not answer within {ANSWER_S:g} s") from None

    async def _session(self, endpoint: str) -> ShmSession:
        async with self._connecting.setdefault(endpoint, asyncio.Lock()):
            self._check_open()
            session = self._sessions.get(endpoint)
            if session is not None and session.failure is not None:
                del self._sessions[endpoint]
                await session.close()
                session = None
            if session is None:
                session = await ShmSession.connect(endpoint, self._identity, self._runtime)
                self._sessions[endpoint] = session
                if self._closed:
                    await session.close()
            self._check_open()
            return session

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the shm fabric client is closed")
