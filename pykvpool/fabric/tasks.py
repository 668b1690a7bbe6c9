"""Transfers as tasks: the pieces of one, which end together, and all those under way, which a closing client ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pykvpool.runtime import drain

T = TypeVar("T")


async def run_all(work: Sequence[Coroutine[Any, Any, T]], on_abort: Callable[[], None] | None = None) -> list[T]:
    """Run `work` concurrently and return the results in order, when all of it has ended.

    Cancelled, it calls `on_abort`, cancels every piece, waits for each to end (the drained rule), then raises. An error
    of one piece surfaces when all have ended. Starts and ends in the order of `work`, so that a deterministic loop
    stays deterministic.
    """
    tasks = [asyncio.ensure_future(piece) for piece in work]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        if on_abort is not None:
            on_abort()
        for task in tasks:
            task.cancel()
        for task in tasks:
            await drain(task)
        raise
    errors = [error for task in tasks if (error := task.exception()) is not None]
    if errors:
        raise errors[0]
    return [task.result() for task in tasks]


class UnderWay:
    """The transfers of a client that have not ended, by their deadlines."""

    def __init__(self) -> None:
        self._deadlines: dict[asyncio.Timeout, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def counted(self, deadline: asyncio.Timeout) -> Iterator[None]:
        """One more until the block is left."""
        self._deadlines[deadline] = None
        self._idle.clear()
        try:
            yield
        finally:
            del self._deadlines[deadline]
            if not self._deadlines:
                self._idle.set()

    async def end(self) -> None:
        """Pull every deadline in, and wait until all have ended."""
        now = asyncio.get_running_loop().time()
        for deadline in self._deadlines:
            deadline.reschedule(now)
        await self.ended()

    async def ended(self) -> None:
        """Wait until none is under way."""
        await self._idle.wait()
