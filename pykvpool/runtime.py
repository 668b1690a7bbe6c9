"""The outside things that a shell needs and a simulator replaces: time, randomness, and work away from the loop.

Shells take a `Runtime` and never import `time`, `random` or a thread pool themselves. `real_runtime()` is the world;
the simulator builds its own with virtual time and one seed.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")

#: Threads for copies and hashes. They run without the GIL, so more than the memory bus can feed gains nothing.
OFFLOAD_THREADS = min(4, os.cpu_count() or 1)


class Clock(Protocol):
    """Milliseconds that run on through suspend (a lease must not survive a closed lid)."""

    def now_ms(self) -> int: ...


class Offload(Protocol):
    """Runs a function that releases the GIL (a copy, a hash) away from the loop and awaits its result.

    A cancelled `run` raises only after the function has ended: whoever owns the buffers may reuse them then.
    """

    async def run(self, function: Callable[..., T], /, *args: object) -> T: ...

    def close(self) -> None: ...


class BootClock:
    """CLOCK_BOOTTIME."""

    def now_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class ThreadOffload:
    """`Offload` on a small thread pool, started at first use."""

    def __init__(self, threads: int = OFFLOAD_THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="pykvpool-offload")

    async def run(self, function: Callable[..., T], /, *args: object) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._pool, functools.partial(function, *args))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await drain(future)
            raise

    def close(self) -> None:
        self._pool.shutdown(wait=True)


async def drain(future: asyncio.Future[T]) -> None:
    """Wait until `future` is done however often the waiting task is cancelled; its result or error is dropped."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a shell gets from outside."""

    clock: Clock
    random: random.Random
    offload: Offload

    def new_incarnation(self) -> int:
        """A random 63-bit number that names one life of a process, session or segment."""
        return self.random.getrandbits(63) | 1


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where the extra ``fast`` is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def real_runtime() -> Runtime:
    """Boot clock, the system's randomness, a thread pool."""
    return Runtime(BootClock(), random.SystemRandom(), ThreadOffload())
