"""Resets: an engine's blocks leave the pool, because they are void (new weights).

Whoever asks for a reset may not look at the answer, and blocks of the old weights under the same keys would be loaded
as the new ones'. So a reset that was not confirmed (no pool, or saves of before still under way) stays *due*: it is
tried again when requests come, and until it is confirmed the pool is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pykvpool_connector.vllm.identity import Identity
from pykvpool_connector.vllm.scheduler.announce import Announcer
from pykvpool_connector.vllm.scheduler.guarded import GuardedPort

log = logging.getLogger(__name__)

#: A reset that was not confirmed is tried again so often, and each time the engine is held for at most so long.
CLEAR_AGAIN_MS = 1_000
CLEAR_AGAIN_S = 0.1


class Resets:
    """Clears the scopes of one engine's fingerprint.

    Args:
        saving: saves of before may be under way, which may yet store something.
        now: milliseconds.
    """

    def __init__(
        self,
        identity: Identity,
        port: GuardedPort,
        announcer: Announcer,
        *,
        saving: Callable[[], bool],
        now: Callable[[], int],
    ) -> None:
        self._identity = identity
        self._port = port
        self._announcer = announcer
        self._saving = saving
        self._now = now
        #: Adapters whose scopes have to be cleared: those that were used.
        self.adapters: set[str] = {""}
        #: Blocks of before may be in the pool.
        self.due = False
        self._again_at = 0

    def clear(self, timeout_s: float) -> bool:
        """Remove this engine's blocks. True: nothing of before is in the pool, or will be."""
        scopes = tuple(
            scope
            for adapter in sorted(self.adapters)
            for rule in self._identity.groups
            for scope in self._identity.scopes(adapter, rule.group)
        )
        removed = self._port.reset(scopes, timeout_s)
        if removed:
            self._announcer.forget()
        was_due, self.due = self.due, not removed or self._saving()
        self._again_at = self._now() + CLEAR_AGAIN_MS
        if self.due and not was_due:
            log.warning("a reset is not confirmed: nothing is loaded from the pool or saved there until it is")
        elif was_due and not self.due:
            log.info("the reset is confirmed: the pool is used again")
        return not self.due

    def finish(self) -> bool:
        """Try again what is due, now and then. True: it has just been confirmed."""
        return self.due and not self._saving() and self._now() >= self._again_at and self.clear(CLEAR_AGAIN_S)
