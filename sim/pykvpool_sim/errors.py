"""What the simulator itself has to say, apart from what the code under test does.

These are not `PoolError`s: no caller of the pool ever meets one. They mean that a scenario cannot go on (`Deadlock`,
`Livelock`, `OutOfTime`), that simulated code reached for the real world (`EscapesSimulation`), or that something went
wrong that nobody was told about (`Unhandled`).
"""

from __future__ import annotations


class SimulationError(Exception):
    """Base of the simulator's own errors."""


class EscapesSimulation(SimulationError):
    """Simulated code called something that only the real world can answer; the message names the call."""


class Deadlock(SimulationError):
    """Nothing can run, no timer is set, and what was waited for is not done; the message has every task's stack."""


class Livelock(SimulationError):
    """Callbacks ran and ran at one instant of virtual time; the message names those seen last."""


class OutOfTime(SimulationError):
    """The scenario passed its limit of virtual time without ending; the message has every task's stack."""


class HostCrashed(SimulationError):
    """What was awaited ran on a host that crashed: it will never end, and nothing says how far it came."""


class Unhandled(SimulationError):
    """Errors went to the event loop's exception handler, that is to nobody; `contexts` holds what it was given."""

    def __init__(self, message: str, contexts: tuple[dict[str, object], ...]) -> None:
        super().__init__(message)
        self.contexts = contexts


class Hung(BaseException):
    """Real time ran out inside one callback. Not an `Exception`: what loops for ever may also catch for ever."""
