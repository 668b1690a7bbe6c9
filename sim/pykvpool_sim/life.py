"""To whom a callback belongs: one life of one host, carried by every task and callback in a context variable.

asyncio copies the context into each task, timer and done-callback, so whatever a host's code starts belongs to the same
life without knowing it. The loop asks the life whether its callbacks may run: a paused one's wait, a dead one's never
run. Code that runs in no life belongs to the world: the scenario, the network, the checkers.

A dead life's tasks must stop *as they are*: a process that lost power runs no ``finally``. Python would run them all
the same when it frees the coroutines, so they are never freed (`bury`).
"""

from __future__ import annotations

import ctypes
import enum
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pykvpool_sim.clock import HostClock

if TYPE_CHECKING:
    from pykvpool_sim.ready import Entry


class State(enum.Enum):
    """What a life's callbacks may do."""

    RUNNING = "running"
    #: They wait for `RUNNING`: the process is stopped, or its machine suspended.
    PAUSED = "paused"
    #: They never run again.
    DEAD = "dead"


class Life:
    """One run of a host, from start to crash."""

    def __init__(self, number: int, name: str, clock: HostClock) -> None:
        #: Rises over all hosts, from 1; 0 is the world.
        self.number = number
        #: For people and traces: ``node-1#3``.
        self.name = name
        self.clock = clock
        self.state = State.RUNNING
        #: Callbacks that became ready while it was paused, in order.
        self.parked: list[Entry] = []


#: The life whose code is running; None: the world.
CURRENT_LIFE: ContextVar[Life | None] = ContextVar("CURRENT_LIFE", default=None)


def bury(remains: list[object]) -> None:
    """Keep `remains`, and so all that they refer to, from ever being freed, also when the interpreter exits.

    Freeing a suspended coroutine runs its ``finally`` blocks, freeing a generator too, and some objects do things in
    ``__del__``; a crash runs none of that. So this leaks on purpose, by one reference that nobody gives back. What a
    crashed host held is small in a test; long campaigns run their seeds in batches, a process each, and buffers that
    are large are dropped by `Host.on_crash`.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(remains))
