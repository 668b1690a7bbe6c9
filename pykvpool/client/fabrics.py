"""The client's way to other machines' memory, made anew for each session.

Owners fence a writer by its name and incarnation, so data connections and maps belong to one incarnation: when the
session is renewed, the old ones are drained and said goodbye to (which is what lets an owner end the quarantine of a
live process), and new ones take their place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pykvpool.fabric.router import Router


class Fabrics:
    """Holds the present router; `renew` swaps it. What is begun here ends, whoever is cancelled while it waits: a
    connection that was neither closed nor in use would keep its owner waiting for its goodbye."""

    def __init__(self, make: Callable[[], Router]) -> None:
        self._make = make
        self.router = make()
        #: Routers of earlier lives that are being closed. A dict: it iterates in order of creation.
        self._ending: dict[asyncio.Task[None], None] = {}

    async def renew(self) -> None:
        """Close everything of the old incarnation (operations under way end as `Closed`), begin with nothing open."""
        old, self.router = self.router, self._make()
        ending = asyncio.get_running_loop().create_task(old.close(), name="pykvpool fabrics of an earlier life")
        self._ending[ending] = None
        ending.add_done_callback(lambda done: self._ending.pop(done, None))
        await asyncio.shield(ending)

    async def close(self) -> None:
        """Close everything, of earlier lives too."""
        await asyncio.gather(self.router.close(), *self._ending)
