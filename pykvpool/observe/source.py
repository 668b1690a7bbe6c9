"""What an HTTP face shows: a master or a node gives one of these to `build_app`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from pykvpool.model.replies import State


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a process can do its work now."""

    #: Why not, in sentences; empty: it can.
    reasons: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        return not self.reasons


class Source(Protocol):
    """One process, as its HTTP face sees it."""

    @property
    def role(self) -> str:
        """ "master", "node", ..."""
        ...

    @property
    def registry(self) -> CollectorRegistry:
        """Its metrics."""
        ...

    def health(self) -> Health:
        """At once, without waiting for anything."""
        ...

    async def state(self) -> State:
        """The master's state: its own, or asked for. Raises `PoolError` where it cannot be had."""
        ...
