"""The doors out of the simulation, locked, each with a sign that says where it is.

`NoEscapes` refuses every method of an event loop that the simulated loop does not provide itself: sockets, pipes,
subprocesses, signals, executors. `real_world_refused` does the same for the calls that go around the loop (clocks,
sleep, the global random numbers, threads, sockets), while a loop runs and for callers among the packages under
simulation only: pytest, Hypothesis and logging may read the clock, since nothing of it comes back into the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from pykvpool_sim.errors import EscapesSimulation

#: Top-level packages whose code is held inside the simulation. A module is added with `guarded`.
GUARDED_PACKAGES = ("pykvpool", "pykvpool_connector", "pykvpool_sim")

#: Module attributes that reach around the loop, and what to use instead.
_CLOCK = "take the clock of the Runtime, or the loop's time()"
_RANDOM = "draw from the Runtime's random"
_OUTSIDE: tuple[tuple[Any, str, str], ...] = (
    (time, "time", _CLOCK),
    (time, "time_ns", _CLOCK),
    (time, "monotonic", _CLOCK),
    (time, "monotonic_ns", _CLOCK),
    (time, "perf_counter", _CLOCK),
    (time, "perf_counter_ns", _CLOCK),
    (time, "clock_gettime", _CLOCK),
    (time, "clock_gettime_ns", _CLOCK),
    (time, "sleep", "await asyncio.sleep"),
    (random, "random", _RANDOM),
    (random, "randrange", _RANDOM),
    (random, "randint", _RANDOM),
    (random, "choice", _RANDOM),
    (random, "shuffle", _RANDOM),
    (random, "uniform", _RANDOM),
    (random, "getrandbits", _RANDOM),
    (random, "randbytes", _RANDOM),
    (os, "urandom", _RANDOM),
    (uuid, "uuid4", _RANDOM),
    (socket, "create_connection", "use a transport of the simulated network"),
    (socket, "socket", "use a transport of the simulated network"),
    (subprocess, "Popen", "start a Host"),
    (threading, "Thread", "use the Runtime's offload"),
)


class NoEscapes(asyncio.AbstractEventLoop):
    """Every public method of an event loop, refused; the simulated loop overrides those it can serve."""


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
        raise EscapesSimulation(f"loop.{name}() reaches out of the simulation: virtual time has no such thing")

    return refuse


for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_"):
        setattr(NoEscapes, _name, _refusal(_name))


@contextlib.contextmanager
def real_world_refused(guarded: tuple[str, ...] = GUARDED_PACKAGES) -> Iterator[None]:
    """Within the block, calls out of the packages `guarded` to real clocks, randomness, sockets, processes and threads
    raise `EscapesSimulation`. Names that a module imported before (``from time import sleep``) are not caught."""
    originals = [(module, name, getattr(module, name)) for module, name, _ in _OUTSIDE]
    for (module, name, instead), (_, _, original) in zip(_OUTSIDE, originals, strict=True):
        # Types stay types for isinstance; what is guarded is their creation, by a subclass with a watched __new__.
        watched = _watched_type if isinstance(original, type) else _watched_function
        setattr(module, name, watched(original, f"{module.__name__}.{name}", instead, guarded))
    try:
        yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


def _check_caller(called: str, instead: str, guarded: tuple[str, ...]) -> None:
    caller = str(sys._getframe(2).f_globals.get("__name__", ""))
    if caller.partition(".")[0] in guarded:
        raise EscapesSimulation(f"{caller} calls {called}() inside a simulation: {instead}")


def _watched_function(
    original: Callable[..., Any], called: str, instead: str, guarded: tuple[str, ...]
) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        _check_caller(called, instead, guarded)
        return original(*args, **kwargs)

    return watched


def _watched_type(original: type, called: str, instead: str, guarded: tuple[str, ...]) -> type:
    class Meta(type(original)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            _check_caller(called, instead, guarded)
            return original(*args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    return Meta(original.__name__, (original,), {})
