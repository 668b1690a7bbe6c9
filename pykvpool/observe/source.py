"""What an HTTP face shows: a master or a node gives one of these to `build_app`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from pykvpool.errors import ProtocolError, Unavailable
from pykvpool.metrics import Metrics
from pykvpool.model.commands import ClusterState, Command
from pykvpool.model.replies import Reply, State

#: Scrapers give up after 10 s; the answer without a state should still be on time.
STATE_DEADLINE_S = 5.0


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
    def node(self) -> str | None:
        """Name of the node that it is: its metrics show that one's segments alone. None: the whole pool's state."""
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


class Caller(Protocol):
    """A session with the master: `pykvpool.transport.control.ControlSession` is one."""

    @property
    def connected(self) -> bool:
        """It has a connection now."""
        ...

    async def call(self, command: Command, timeout_s: float) -> Reply:
        """The master's answer. Raises `PoolError`."""
        ...


class SessionSource:
    """The `Source` of any process that has a session with the master: a node its own, a master one with itself.

    Args:
        role: "master", "node", ...
        metrics: of this process.
        session: gives the present session, None while there is none.
        node: see `Source.node`.
    """

    def __init__(
        self, role: str, metrics: Metrics, session: Callable[[], Caller | None], node: str | None = None
    ) -> None:
        self.role = role
        self.node = node
        self.registry = metrics.registry
        self._session = session

    def health(self) -> Health:
        session = self._session()
        if session is None:
            return Health(("there is no session with the master",))
        return Health() if session.connected else Health(("the connection to the master is gone",))

    async def state(self) -> State:
        session = self._session()
        if session is None:
            raise Unavailable("there is no session with the master")
        reply = await session.call(ClusterState(), STATE_DEADLINE_S)
        if not isinstance(reply, State):
            raise ProtocolError(f"the master answered a question for its state with {type(reply).__name__}")
        return reply
