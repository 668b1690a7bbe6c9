"""Sessions: who they are (durable), and what the master knows of them while they live (soft).

A session is one incarnation of one name. An ended incarnation is remembered for a while, so that a superseded process
that reconnects is told so instead of pushing its successor out again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pykvpool.core.requests import ReplyLog
from pykvpool.model.facts import SessionOpened
from pykvpool.model.ids import SessionId

#: Ended incarnations remembered. A process comes back within seconds or never; 4,096 covers a restart of a large
#: cluster many times over at about 200 bytes each.
REMEMBERED_INCARNATIONS = 4_096

ROLES = ("client", "reader", "node")


@dataclass(slots=True)
class Session:
    """One session; `id`, `name`, `role` and `incarnation` are durable, the rest is soft."""

    id: SessionId
    name: str
    role: str
    incarnation: int
    connected: bool = True
    #: When it last said anything, and when its connection went (meaningful while not `connected`).
    last_seen: int = 0
    disconnected_at: int = 0
    log: ReplyLog = field(default_factory=ReplyLog)

    def deadline(self, ttl_ms: int, grace_ms: int) -> int:
        """When it is expired unless it says something before."""
        alive_until = self.last_seen + ttl_ms
        return alive_until if self.connected else min(alive_until, self.disconnected_at + grace_ms)


class Sessions:
    """Live sessions, and what must be remembered of ended ones."""

    __slots__ = ("_remembered", "by_id", "by_name", "ended", "last_id", "reasons")

    def __init__(self) -> None:
        self.by_id: dict[SessionId, Session] = {}
        #: By kind and name: a node and a client may be called alike, and neither supersedes the other.
        self.by_name: dict[tuple[bool, str], Session] = {}
        #: Ended sessions that still have quarantined extents: fences must name them.
        self.ended: dict[SessionId, Session] = {}
        #: (name, incarnation) -> why it ended, for the last REMEMBERED_INCARNATIONS.
        self.reasons: dict[tuple[str, int], str] = {}
        self._remembered: deque[tuple[str, int]] = deque()
        #: Highest id ever given out.
        self.last_id = 0

    @staticmethod
    def name_of(role: str, name: str) -> tuple[bool, str]:
        """What a new session takes over from an old one: nodes' names are apart from those of clients and readers."""
        return (role == "node", name)

    def open(self, fact: SessionOpened) -> Session:
        session = Session(fact.session, fact.name, fact.role, fact.incarnation)
        self.by_id[fact.session] = session
        self.by_name[self.name_of(fact.role, fact.name)] = session
        self.last_id = max(self.last_id, fact.session)
        return session

    def end(self, session_id: SessionId, reason: str) -> Session:
        """The session ends; it stays in `ended` until `forget`."""
        session = self.by_id.pop(session_id)
        name = self.name_of(session.role, session.name)
        if self.by_name.get(name) is session:
            del self.by_name[name]
        self.ended[session_id] = session
        key = (session.name, session.incarnation)
        self.reasons[key] = reason
        self._remembered.append(key)
        if len(self._remembered) > REMEMBERED_INCARNATIONS:
            self.reasons.pop(self._remembered.popleft(), None)
        return session

    def forget(self, session_id: SessionId) -> None:
        """Nothing is left of an ended session that would need its name."""
        self.ended.pop(session_id, None)

    def identity(self, session_id: SessionId) -> Session | None:
        """The session, live or ended with something left."""
        return self.by_id.get(session_id) or self.ended.get(session_id)
