"""Randomness that can be replayed: one seed, split by name into streams that do not disturb each other.

A stream's numbers depend on the seed and its name alone, so that a new fault that draws from a stream of its own leaves
every other stream as it was, and an old seed still tells its old story. Every draw is told to the trace: two runs with
equal digests drew equal numbers.

`random.Random` computes the rest (ranges, shuffles, floats) from `random` and `getrandbits` in the same way in every
Python from 3.11 on; only these two are overridden.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

#: Told about each draw: the stream's name and the number drawn.
OnDraw = Callable[[str, float], None]


def derive(seed: int, name: str) -> int:
    """The seed of the stream `name`: 128 bits of SHA-256 over both, stable for ever."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "little")


class Draws(random.Random):
    """One named stream. Looks like any `random.Random`; `chance` and `between` say what faults mostly ask."""

    def __init__(self, seed: int, name: str, on_draw: OnDraw | None = None) -> None:
        self.name = name
        self._on_draw = on_draw
        super().__init__(derive(seed, name))

    def random(self) -> float:
        """A float in [0, 1)."""
        value = super().random()
        if self._on_draw is not None:
            self._on_draw(self.name, value)
        return value

    def getrandbits(self, k: int, /) -> int:
        """An integer of `k` random bits."""
        value = super().getrandbits(k)
        if self._on_draw is not None:
            self._on_draw(self.name, value)
        return value

    def chance(self, ratio: float) -> bool:
        """True with probability `ratio`. A ratio of 0 draws nothing: a fault that is off leaves no trace."""
        return ratio > 0 and self.random() < ratio

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included; draws nothing where they are equal."""
        return low if low == high else low + self._below(high - low + 1)

    def _below(self, limit: int) -> int:
        """Below `limit`, evenly: draws what `random.Random` draws, on a shorter way."""
        draw, bits = self.getrandbits, limit.bit_length()
        number = draw(bits)
        while number >= limit:
            number = draw(bits)
        return number
