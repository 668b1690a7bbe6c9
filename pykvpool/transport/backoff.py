"""How long to wait before the next attempt to reach a master: doubling, with jitter, so that a thousand clients that
lost the same master do not come back in step."""

from __future__ import annotations

import random

#: Before the first new attempt, at most.
FIRST_DELAY_S = 0.05
#: Between attempts, at most: a master that comes back is found within this.
MAX_DELAY_S = 2.0


class Backoff:
    """Delays in seconds; `randomness` is the runtime's."""

    def __init__(self, randomness: random.Random) -> None:
        self._random = randomness
        self._ceiling_s = FIRST_DELAY_S

    def next_s(self) -> float:
        """Half to all of a ceiling that doubles each time."""
        delay_s = self._ceiling_s * self._random.uniform(0.5, 1.0)
        self._ceiling_s = min(2 * self._ceiling_s, MAX_DELAY_S)
        return delay_s

    def reset(self) -> None:
        """The master was heard from."""
        self._ceiling_s = FIRST_DELAY_S
