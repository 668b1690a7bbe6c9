"""Which sessions are open, and which connection serves each.

Learned from the core's facts and the shell's connections; it decides nothing but one thing: whether a peer that wants
to *resume* may ask the core at all. The core takes a hello of another incarnation for a new life that supersedes the
old; an old life that was superseded while its connection was cut must not come back that way.
"""

from __future__ import annotations

from collections.abc import Sequence

from pykvpool.errors import SessionExpired
from pykvpool.master.connection import Connection
from pykvpool.model.facts import Fact, SessionEnded, SessionOpened
from pykvpool.model.ids import SessionId
from pykvpool.protocol.messages import HelloFrame, Parting

#: Words of `SessionEnded.reason` that a peer has to be told.
_PARTINGS = {"expired": Parting.EXPIRED, "superseded": Parting.SUPERSEDED}


class Roster:
    """One per master."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        #: Open sessions and their names, both ways.
        self._names: dict[SessionId, str] = {}
        self._by_name: dict[str, SessionId] = {}
        #: The connection that serves a session, while there is one.
        self._connections: dict[SessionId, Connection] = {}
        #: How sessions ended that still have a connection.
        self._endings: dict[SessionId, Parting] = {}

    def note(self, facts: Sequence[Fact]) -> None:
        """Follow the core."""
        for fact in facts:
            if isinstance(fact, SessionOpened):
                self._names[fact.session] = fact.name
                self._by_name[fact.name] = fact.session
            elif isinstance(fact, SessionEnded):
                name = self._names.pop(fact.session, None)
                if name is not None and self._by_name.get(name) == fact.session:
                    del self._by_name[name]
                if fact.session in self._connections:
                    self._endings[fact.session] = _PARTINGS.get(fact.reason, Parting.NONE)

    def check_resume(self, hello: HelloFrame) -> Parting:
        """NONE: go ahead. Else why the session that `hello` wants back is over."""
        if not hello.resume:
            return Parting.NONE
        if hello.epoch != self._epoch:
            return Parting.RESTARTED
        holder = self._by_name.get(hello.name)
        if holder == hello.resume:
            return Parting.NONE
        return Parting.EXPIRED if holder is None else Parting.SUPERSEDED

    def is_open(self, session: SessionId) -> bool:
        return session in self._names

    def bind(self, session: SessionId, connection: Connection) -> Connection | None:
        """`connection` serves the session from now on; returns the one that did."""
        before = self._connections.get(session)
        self._connections[session] = connection
        return before

    def connection(self, session: SessionId) -> Connection | None:
        return self._connections.get(session)

    def unbind(self, connection: Connection) -> bool:
        """Forget it; True if it still served its session."""
        if self._connections.get(connection.session) is not connection:
            return False
        del self._connections[connection.session]
        self._endings.pop(connection.session, None)
        return True

    def ending(self, session: SessionId) -> Parting:
        """How a session ended whose connection is still there."""
        return self._endings.get(session, Parting.EXPIRED)


def over(parting: Parting) -> SessionExpired:
    """What a peer is told whose session cannot be resumed."""
    return SessionExpired(
        {
            Parting.RESTARTED: "the master has restarted and does not know it any more",
            Parting.SUPERSEDED: "another process has taken its name",
        }.get(parting, "it expired: no sign of life for too long"),
        parting=parting.value,
    )
