"""The client's way to other machines' memory, made anew for each session.

Owners fence a writer by its name and incarnation, so data connections and maps belong to one incarnation: when the
session is renewed, the old ones are drained and said goodbye to (which is what lets an owner end the quarantine of a
live process), and new ones take their place.
"""

from __future__ import annotations

from collections.abc import Callable

from pykvpool.fabric.router import Router


class Fabrics:
    """Holds the present router; `renew` swaps it."""

    def __init__(self, make: Callable[[], Router]) -> None:
        self._make = make
        self.router = make()

    async def renew(self) -> None:
        """Close everything of the old incarnation (operations under way end as `Closed`), begin with nothing open."""
        old, self.router = self.router, self._make()
        await old.close()

    async def close(self) -> None:
        await self.router.close()
