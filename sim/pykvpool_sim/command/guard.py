"""How a run is ended from outside: by a limit of computing time (code that loops without ever awaiting stops virtual
time, and nothing inside can notice), and by whoever has seen enough.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from pykvpool_sim.errors import Hung

#: A run takes a second or less of a core, or a few where everything goes wrong.
LIMIT_S = 60.0


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Within the block, SIGTERM is as good as Ctrl-C (which does not reach what runs in the background). Main thread
    only."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def time_limit(limit_s: float = LIMIT_S) -> Iterator[None]:
    """Raises `Hung` inside what runs too long, and again each second where that is caught. What counts is the time that
    this process computes: on a busy machine a run may take any time. Main thread only."""

    def ring(number: int, frame: FrameType | None) -> None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "?"
        raise Hung(f"one callback has run for {limit_s:g} s of a core, at {where}")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, limit_s, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
