"""When to send a heartbeat, and when to take a silent connection for dead. Times are the loop's, in seconds.

One timer per connection. It runs apart from calls and their window, so that neither a long queue nor data work on
other threads starves it: a session expires because its process or its way is gone, not because it was busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: A heartbeat is due after this part of the session's life: two may be lost.
HEARTBEAT_RATIO = 1 / 3
#: Anything sent within this part of an interval is as good as a heartbeat: signs of life are at most half a life apart.
RECENT_RATIO = 1 / 2
#: Silent for this part of the session's life, the connection is dead: a heartbeat has gone unanswered for a quarter of
#: it, and there is time left to come back before the session expires.
SILENCE_RATIO = 0.6


class Keepalive:
    """`beat` sends a heartbeat; `give_up` cuts the connection."""

    def __init__(self, ttl_ms: int, beat: Callable[[], None], give_up: Callable[[], None]) -> None:
        self._ttl_s = ttl_ms / 1000
        self._beat = beat
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._heard_at_s = self._sent_at_s = self._loop.time()
        self._timer = self._loop.call_later(self._interval_s, self._tick)

    @property
    def _interval_s(self) -> float:
        return self._ttl_s * HEARTBEAT_RATIO

    def heard(self) -> None:
        """A frame came."""
        self._heard_at_s = self._loop.time()

    def sent(self) -> None:
        """A request went."""
        self._sent_at_s = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        now_s = self._loop.time()
        if now_s - self._heard_at_s > self._ttl_s * SILENCE_RATIO:
            self._give_up()
            return
        if now_s - self._sent_at_s >= self._interval_s * RECENT_RATIO:
            self._beat()
        self._timer = self._loop.call_later(self._interval_s, self._tick)
