"""What the shell needs of a core: `pykvpool.core.master.MasterCore` is one, tests bring smaller ones."""

from __future__ import annotations

from typing import Protocol

from pykvpool.core.effects import Effects
from pykvpool.model.events import Event


class Decider(Protocol):
    """A state machine: events and time in, decisions out. It does no I/O and reads no clock."""

    @property
    def epoch(self) -> int:
        """Random number of this life of the master."""
        ...

    def step(self, event: Event, now: int) -> Effects:
        """What `event` at `now` (ms) leads to. Takes a millisecond or two at most; longer work is left to `Tick`s."""
        ...

    def next_deadline(self) -> int | None:
        """When (ms) the next `Tick` is wanted; not later than now while work is pending, None when none is."""
        ...
