"""What every verb of the client needs: is it open, when must it be over, and what if the session was lost meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, cast

from pykvpool.client.fabrics import Fabrics
from pykvpool.client.link import MasterLink
from pykvpool.client.types import ClientStatistics
from pykvpool.errors import Closed, InvalidArgument, PoolError, SessionExpired, invariant
from pykvpool.model.keys import Scope

T = TypeVar("T")


class ClientBase:
    """One session with a pool, its fabrics and its life."""

    def __init__(self, link: MasterLink, fabrics: Fabrics, namespace: str, timeout_s: float) -> None:
        self._link = link
        self._fabrics = fabrics
        #: Incarnation that the present fabrics announce.
        self._fabrics_of = link.session.incarnation
        self._renewing = asyncio.Lock()
        self._timeout_s = timeout_s
        self.namespace = namespace
        #: Scope of plain keys.
        self._plain = Scope(namespace)
        self._statistics = ClientStatistics()
        self._closing: asyncio.Task[None] | None = None

    def statistics(self) -> ClientStatistics:
        """A snapshot of this client's counters."""
        return self._statistics.copy()

    @property
    def closed(self) -> bool:
        return self._closing is not None

    @property
    def connected(self) -> bool:
        """There is a connection to the master at this moment. Calls work, or wait for one, in either case."""
        return self._link.session.connected

    async def revive(self) -> None:
        """Open a new session now where the master gave the old one up; every call does that by itself when it meets it.

        Raises `SessionExpired` where another process has taken the name, else as `Client.connect`.
        """
        self._check_open()
        if self._link.session.lost is not None:
            await self._renew(self._link.session.incarnation)

    async def close(self) -> None:
        """End transfers, release leases, say goodbye. Harmless twice; whoever is cancelled here leaves it going on."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="pykvpool close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._fabrics.close()
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self.closed:
            raise Closed("this client is closed: connect a new one")

    def _begin(self, timeout_s: float | None) -> int:
        """Every call begins here: is the client open, and when must the call be over?"""
        self._check_open()
        if timeout_s is not None and timeout_s <= 0:
            raise InvalidArgument(f"timeout_s is {timeout_s}: it must be positive")
        return self._link.deadline_ms(self._timeout_s if timeout_s is None else timeout_s)

    async def _in_session(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run once more where the session was lost underneath (the master gave us up, or was restarted)."""
        incarnation = self._link.session.incarnation
        try:
            return await run()
        except SessionExpired:
            await self._renew(incarnation)
            return await run()

    async def _renew(self, lost_incarnation: int) -> None:
        """Open a new session, once for all the calls that found the old one lost."""
        async with self._renewing:
            if self._link.session.incarnation == lost_incarnation:
                await self._link.session.renew_session()
            if self._fabrics_of != self._link.session.incarnation:
                self._fabrics_of = self._link.session.incarnation
                self._statistics.sessions_renewed += 1
                self._link.spawn(self._link.watch_again, "Watch")
                await self._fabrics.renew()


def chunked(values: Sequence[T], size: int) -> list[Sequence[T]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def value_of(result: T | PoolError) -> T:
    if isinstance(result, PoolError):
        raise result
    return result


def decided(result: T | PoolError | None) -> T | PoolError:
    invariant(result is not None, "every job is decided when its batch returns")
    return cast("T | PoolError", result)
