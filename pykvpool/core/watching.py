"""Who wants to know of blocks that leave the pool, scope by scope: engines that announce a cache's contents.

Soft, and no promise: a session is told while it is connected, and what it missed it is not told later. What goes in one
step is one instruction a scope and watcher, so that telling costs as much as removing.
"""

from __future__ import annotations

from pykvpool.errors import Overloaded
from pykvpool.model.ids import ScopeId, SessionId
from pykvpool.model.instructions import BlocksRemoved, Instruction

#: Most scopes one session may watch: ranks x groups x adapters of a large engine.
MAX_WATCHED = 4_096


class Watching:
    """The watchers, and what has gone in the step under way."""

    def __init__(self) -> None:
        #: In order of asking; values mean nothing.
        self.by_scope: dict[ScopeId, dict[SessionId, None]] = {}
        self.by_session: dict[SessionId, dict[ScopeId, None]] = {}
        self._gone: dict[ScopeId, list[bytes]] = {}

    def watch(self, session: SessionId, scopes: tuple[ScopeId, ...]) -> None:
        """From now on; twice is harmless. Raises `Overloaded` for too many, and then takes none."""
        watched = self.by_session.get(session, {})
        wanted = {**watched, **dict.fromkeys(scopes)}
        if len(wanted) > MAX_WATCHED:
            raise Overloaded(
                f"{len(wanted)} scopes would be watched by this session: at most {MAX_WATCHED} are allowed"
            )
        self.by_session[session] = wanted
        for scope in scopes:
            self.by_scope.setdefault(scope, {})[session] = None

    def drop(self, session: SessionId) -> None:
        """The session is over."""
        for scope in self.by_session.pop(session, ()):
            watchers = self.by_scope[scope]
            del watchers[session]
            if not watchers:
                del self.by_scope[scope]

    def removed(self, scope: ScopeId, hash_: bytes) -> None:
        """A key is gone."""
        if scope in self.by_scope:
            self._gone.setdefault(scope, []).append(hash_)

    def take(self) -> list[tuple[SessionId, Instruction]]:
        """What is to be said at the end of a step."""
        if not self._gone:
            return []
        gone, self._gone = self._gone, {}
        return [
            (session, BlocksRemoved(scope, tuple(hashes)))
            for scope, hashes in gone.items()
            for session in self.by_scope.get(scope, ())
        ]
