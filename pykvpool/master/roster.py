"""Which connection serves which session, and how sessions ended. Learned from the shell's connections and the core's
facts; it decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from pykvpool.master.connection import Connection
from pykvpool.model.facts import Fact, SessionEnded
from pykvpool.model.ids import SessionId
from pykvpool.protocol.messages import Parting

#: What a peer has to be told for a reason that the core gives.
PARTINGS = {"expired": Parting.EXPIRED, "superseded": Parting.SUPERSEDED}


class Roster:
    """One per master."""

    def __init__(self) -> None:
        #: The connection that serves a session, while there is one.
        self._connections: dict[SessionId, Connection] = {}
        #: How sessions ended that still have a connection.
        self._endings: dict[SessionId, str] = {}

    def note(self, facts: Sequence[Fact]) -> None:
        """Follow the core."""
        for fact in facts:
            if isinstance(fact, SessionEnded) and fact.session in self._connections:
                self._endings[fact.session] = fact.reason

    def bind(self, session: SessionId, connection: Connection) -> Connection | None:
        """`connection` serves the session from now on; returns the one that did."""
        before = self._connections.get(session)
        self._connections[session] = connection
        return before

    def connection(self, session: SessionId) -> Connection | None:
        return self._connections.get(session)

    def unbind(self, connection: Connection) -> bool:
        """Forget it; True if it still served a session that has not ended."""
        if self._connections.get(connection.session) is not connection:
            return False
        del self._connections[connection.session]
        return self._endings.pop(connection.session, None) is None

    def ending(self, session: SessionId) -> Parting:
        """What to tell the peer of a session that is over."""
        return PARTINGS.get(self._endings.get(session, ""), Parting.EXPIRED)
