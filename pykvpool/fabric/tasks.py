"""Running several pieces of one transfer at once, so that the whole ends only when every piece has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
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
