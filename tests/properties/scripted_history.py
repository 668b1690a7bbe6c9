"""``python -m tests.properties.scripted_history SEED...``: the digest of what a core says to one random history each.

A program of its own, so that a test can run it under several hash seeds and compare.
"""

from __future__ import annotations

import random
import sys

from pykvpool.model.objects import Pin
from tests.core.test_core_histories import KEYS, Histories
from tests.properties.recording import FollowedWorld

STEPS = 150


class ScriptedHistories(Histories):
    """The rules of the random histories, called by dice instead of Hypothesis."""

    new_world = FollowedWorld

    def play(self, dice: random.Random) -> str:
        self.begin(policy=dice.choice(["lru", "fifo"]))
        for _ in range(STEPS):
            self.one_step(dice, dice.randrange(1 << 16))
        self.world.settle()
        return self.world.digest()

    def one_step(self, dice: random.Random, number: int) -> None:
        some = tuple(dice.sample(KEYS, dice.randint(1, 4)))
        match dice.randrange(14):
            case 0 | 1 | 2:
                self.put_whole(number=number, batch=some, replicas=dice.randint(1, 2))
            case 3 | 4 | 5:
                self.put_start(
                    number=number, batch=some, replicas=dice.randint(1, 2), strict=False, wait=True,
                    pin=dice.choice([Pin.NONE, Pin.NONE, Pin.SOFT]), preferred=dice.choice(["", "n0"]),
                )  # fmt: skip
            case 6:
                self.put_end(number=number, landed=dice.randrange(4), uncertain=dice.randrange(4))
            case 7 | 8:
                self.lease(number=number, batch=some)
            case 9:
                self.release(number=number)
            case 10:
                self.remove(number=number, key=some[0], force=True)
            case 11:
                self.node_answers_fences(number=number)
            case 12:
                self.end(number=number & ~3, node=dice.random() < 0.2, how=dice.choice(["goodbye", "superseded"]))
            case 13:
                self.time_passes(ms=dice.choice([1, 500, 9_000]))


if __name__ == "__main__":
    for seed in sys.argv[1:]:
        print(ScriptedHistories().play(random.Random(int(seed))))
