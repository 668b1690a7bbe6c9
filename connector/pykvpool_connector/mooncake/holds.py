"""What `is_exist` said yes to stays for a lease's time, as with Mooncake, so that a get that follows finds it.

The lease is not released but left to lapse (a caller of `is_exist` never says that it is done). It is given up early
only where this session holds too much under leases, oldest questions first: then a get matters more than an answer of
some seconds ago. Runs on the store's loop.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pykvpool.client import Client, HeldLease
from pykvpool.errors import Overloaded

T = TypeVar("T")

#: Keys per question: a step of the master over so many takes about a millisecond.
CHUNK_KEYS = 4_096
#: Most leases kept in mind; each is one question of the last seconds.
MAX_HELD = 1_024


class Holds:
    """The leases behind the answers of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        #: In the order in which they were granted, so that the first lapse first.
        self._held: deque[HeldLease] = deque()

    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """Which keys are readable? Those are held."""
        distinct = list(dict.fromkeys(keys))
        there: dict[bytes, bool] = {}
        for start in range(0, len(distinct), CHUNK_KEYS):
            chunk = distinct[start : start + CHUNK_KEYS]
            ask = functools.partial(self._ask, chunk)
            there.update(zip(chunk, await self.with_room(ask), strict=True))
        return [there[key] for key in keys]

    async def _ask(self, keys: Sequence[bytes]) -> Sequence[bool]:
        while self._held and (not self._held[0].trusted or len(self._held) >= MAX_HELD):
            self._held.popleft().release()
        match = await self._client.match_prefix(keys, presence=(0,), hold=True)
        if match.hold is not None and match.hold.lease is not None:
            self._held.append(match.hold)
        return match.presence[0]

    async def with_room(self, read: Callable[[], Awaitable[T]]) -> T:
        """Run a question or a get; where this session holds too much, give the holds up and run it once more."""
        try:
            return await read()
        except Overloaded:
            if not self._held:
                raise
        while self._held:
            self._held.popleft().release()
        # Releases are sent in the background; the answer to this question comes after them.
        await self._client.exists([b"\0"])
        return await read()
