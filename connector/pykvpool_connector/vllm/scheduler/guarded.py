"""A port that never raises: whatever breaks in it costs hits, not the engine.

An exception in a scheduler's hook ends the engine with all its requests. So what a port raises is logged (a few times)
and becomes what the caller is prepared for: a lookup that failed, nothing polled, a reset that is not confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pykvpool.errors import PoolError
from pykvpool.host.port import Answer, Lookup, PoolPort, PortEvent
from pykvpool.model.keys import Scope

log = logging.getLogger(__name__)

#: Exceptions that are logged with their stack; a port that breaks once tends to break at every call.
LOGGED_FAILURES = 20


class GuardedPort:
    """The scheduler's half of a `PoolPort`."""

    def __init__(self, port: PoolPort) -> None:
        self._port = port
        #: Answers to lookups that the port did not take.
        self._refused: list[PortEvent] = []
        self._left_to_log = LOGGED_FAILURES

    def lookup(self, lookup: Lookup) -> None:
        error = self._try("a lookup", lambda: self._port.lookup(lookup))
        if error is not None:
            reason = error.kind if isinstance(error, PoolError) else type(error).__name__
            self._refused.append(Answer(lookup.lookup_id, error=str(error) or reason, reason=reason))

    def release(self, lookup_id: int) -> None:
        self._try("a release", lambda: self._port.release(lookup_id))

    def watch(self, scopes: tuple[Scope, ...]) -> None:
        self._try("a watch", lambda: self._port.watch(scopes))

    def poll(self) -> list[PortEvent]:
        events, self._refused = self._refused, []
        self._try("a poll", lambda: events.extend(self._port.poll()))
        return events

    def reset(self, scopes: tuple[Scope, ...], timeout_s: float) -> bool:
        confirmed: list[bool] = []
        self._try("a reset", lambda: confirmed.append(self._port.reset(scopes, timeout_s)))
        return confirmed == [True]

    def close(self, drain_s: float) -> None:
        self._try("the end", lambda: self._port.close(drain_s))

    def _try(self, what: str, work: Callable[[], None]) -> Exception | None:
        """Do `work`; what it raised, if anything."""
        try:
            work()
        except Exception as error:  # whatever it is, the engine goes on
            if self._left_to_log > 0:
                self._left_to_log -= 1
                stack = not isinstance(error, PoolError)
                log.error("%s of the port to the pool failed: %s", what, error, exc_info=stack)
            return error
        return None
