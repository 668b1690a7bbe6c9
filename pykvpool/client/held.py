"""A lease as its holder must see it: on the holder's own clock, and pessimistically.

The client trusts 95 % of the time it was granted, counted from *before* the request was sent, so that however long the
reply travelled, the master's lease outlives the client's belief in it. A lease that was renewed too late is lapsed for
good; nothing brings it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from pykvpool.client.link import MasterLink
from pykvpool.errors import LeaseExpired, PoolError, SessionExpired
from pykvpool.model.commands import Release, Renew
from pykvpool.model.ids import LeaseId
from pykvpool.model.replies import Done

#: Part of a lease that its holder believes in; the rest covers clock rates that differ.
TRUST_RATIO = 0.95
#: A lease that is kept alive is renewed after this part of its time, so that two tries fit before it lapses.
RENEW_RATIO = 0.4


class HeldLease:
    """One lease over a batch of objects. Use as an async context manager, or `release()` it."""

    def __init__(self, link: MasterLink, lease: LeaseId | None, lease_ms: int, asked_at_ms: int) -> None:
        self._link = link
        self._life = link.life
        self.lease = lease
        self._lease_ms = lease_ms
        #: The holder's belief ends here.
        self._trusted_until_ms = asked_at_ms + int(lease_ms * TRUST_RATIO)
        self._released = lease is None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def trusted(self) -> bool:
        """The objects are certainly still guarded now."""
        return self.lease is not None and not self._link.leaving and self._link.now_ms() < self._trusted_until_ms

    @property
    def trusted_for_ms(self) -> int:
        return max(0, self._trusted_until_ms - self._link.now_ms())

    def check(self) -> None:
        """Raise `LeaseExpired` unless the lease still vouches for what was read under it."""
        if not self.trusted:
            raise LeaseExpired(
                f"the lease of {self._lease_ms} ms ran out before the transfer ended: the bytes are discarded",
                lease_ms=self._lease_ms,
            )

    async def renew(self, lease_ms: int = 0) -> None:
        """Extend it (0: by as much as first granted). Raises `LeaseExpired` where it has lapsed."""
        self.check()
        wanted_ms = lease_ms or self._lease_ms
        asked_at_ms = self._link.now_ms()
        assert self.lease is not None
        reply = await self._link.call(Renew((self.lease,), wanted_ms), Done, self._trusted_until_ms, self._life)
        if reply.errors and reply.errors[0] is not None:
            raise reply.errors[0].error()
        self._lease_ms = wanted_ms
        self._trusted_until_ms = asked_at_ms + int(wanted_ms * TRUST_RATIO)

    def keep_alive(self, on_lapse: Callable[[], None] | None = None) -> None:
        """Renew it in the background until it is released or lapses; then `on_lapse` is called on the loop."""
        if self._keeper is None and not self._released:
            self._keeper = asyncio.get_running_loop().create_task(self._keep(on_lapse), name="pykvpool lease keeper")

    async def _keep(self, on_lapse: Callable[[], None] | None) -> None:
        while self.trusted:
            await asyncio.sleep(self._lease_ms * RENEW_RATIO / 1_000)
            try:
                await self.renew()
            except (LeaseExpired, SessionExpired):
                break  # lapsed: whoever leaves through check() learns of it too
            except PoolError:
                continue  # the master is away for a moment: try again while there is time
        if on_lapse is not None:
            on_lapse()

    def release(self) -> None:
        """Give it up; the answer is not waited for. Harmless twice."""
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None
        if not self._released and self.lease is not None:
            self._link.tell(Release((self.lease,)), self._life)
        self._released = True
        self._trusted_until_ms = 0

    async def __aenter__(self) -> HeldLease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
