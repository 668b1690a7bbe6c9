"""A world that is followed: everything its core decides goes to a second core that is told facts and nothing else.

The facts travel as bytes, as they would in a journal. After every step both cores must have the same durable state; and
because every event is kept with its time, the whole history can be told to a third core, which must do the same.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from pykvpool.core.effects import Effects
from pykvpool.core.master import MasterCore
from pykvpool.model.events import Event, Request
from pykvpool.model.facts import Fact
from tests.core.driver import World

_encoder = msgspec.msgpack.Encoder()
_fact_decoder: msgspec.msgpack.Decoder[Fact] = msgspec.msgpack.Decoder(Fact)


def bytes_of(effects: Effects) -> bytes:
    """All that a step said, in order."""
    return _encoder.encode([effects.replies, effects.facts, effects.instructions])


class FollowedWorld(World):
    """See the module. The core validates itself elsewhere."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.core.validate = lambda: None  # type: ignore[method-assign]
        self.follower = MasterCore(self.config, epoch=2)
        #: Every event with its time, and what came of it.
        self.history: list[tuple[Event, int, bytes]] = []

    def step(self, event: Event) -> Effects:
        effects = super().step(event)
        self.follow(event, effects)
        return effects

    def follow(self, event: Event, effects: Effects) -> None:
        self.history.append((event, self.now, bytes_of(effects)))
        for fact in effects.facts:
            self.follower.evolve(_fact_decoder.decode(_encoder.encode(fact)))
        assert self.follower.durable_state() == self.core.durable_state(), f"after {event}"

    def repeat_unseen(self, request: Request) -> Effects:
        """The same request once more, as after a cut connection; its owner does not learn of the answer."""
        effects = self.core.step(request, self.now)
        self.follow(request, effects)
        return effects

    def told_again(self) -> None:
        """Another core that gets the same events at the same times says the same, to the byte."""
        other = MasterCore(self.config, epoch=1)
        for number, (event, now, said) in enumerate(self.history):
            assert bytes_of(other.step(event, now)) == said, f"event {number}: {event}"
        assert other.durable_state() == self.core.durable_state()

    def digest(self) -> str:
        """Of everything that was said."""
        return hashlib.sha256(b"".join(said for _, _, said in self.history)).hexdigest()
