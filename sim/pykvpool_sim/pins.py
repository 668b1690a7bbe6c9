"""The few places where asyncio itself runs differently from version to version or from run to run, made one.

While a simulated loop runs, these stand in for asyncio's own, so that a seed tells the same story on Python 3.11, 3.12
and 3.13:

- `wait_for`: 3.11 wraps the awaitable in a task and a waiter; from 3.12 on it is a timeout around an await. The latter
  everywhere.
- `as_completed`: starts its coroutines in the order of a set of addresses. In the order given instead.
- `gather`'s future hashes by address. By a number instead, where someone keeps it in a set.

Code that imported the names before (``from asyncio import wait_for``) keeps asyncio's own. Not pinned, because it only
shows when waiters are cancelled at the very moment they are woken: Condition, Semaphore and Lock of 3.11 hand the turn
on in another way than those of 3.13.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_as_completed = asyncio.as_completed


@contextlib.contextmanager
def asyncio_pinned() -> Iterator[None]:
    """Within the block asyncio behaves as described above, in this process."""
    gathering: Any = asyncio.tasks._GatheringFuture  # type: ignore[attr-defined]
    saved = asyncio.wait_for, asyncio.as_completed
    numbers = itertools.count(1)

    def number_as_hash(self: Any) -> int:
        number: int = getattr(self, "_simulated_number", 0)
        if not number:
            self._simulated_number = number = next(numbers)
        return number

    _replace(wait_for, as_completed)
    gathering.__hash__ = number_as_hash
    try:
        yield
    finally:
        del gathering.__hash__
        _replace(*saved)


def _replace(new_wait_for: Any, new_as_completed: Any) -> None:
    asyncio.wait_for = asyncio.tasks.wait_for = new_wait_for
    asyncio.as_completed = asyncio.tasks.as_completed = new_as_completed


async def wait_for(fut: Awaitable[T], timeout: float | None) -> T:
    """`asyncio.wait_for` as it is from Python 3.12 on."""
    if timeout is not None and timeout <= 0:
        future = asyncio.ensure_future(fut)
        if not future.done():
            future.cancel()
            await asyncio.wait([future])
        try:
            return future.result()
        except asyncio.CancelledError as error:
            raise TimeoutError from error
    async with asyncio.timeout(timeout):
        return await fut


def as_completed(fs: Iterable[Awaitable[T]], *, timeout: float | None = None) -> Any:
    """`asyncio.as_completed` that starts `fs` in the order given."""
    return _as_completed([asyncio.ensure_future(awaitable) for awaitable in fs], timeout=timeout)
