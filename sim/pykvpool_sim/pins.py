"""The few places where asyncio itself runs differently from version to version or from run to run, made one.

While a simulated loop runs, these stand in for asyncio's own, so that a seed tells the same story on Python 3.11, 3.12
and 3.13:

- `wait_for`: 3.11 wraps the awaitable in a task and a waiter; from 3.12 on it is a timeout around an await. The latter
  everywhere.
- `as_completed`: starts its coroutines in the order of a set of addresses. In the order given instead.
- `gather` hears of futures that are done already in a later turn in 3.11, at once from 3.12 on. At once everywhere; and
  its own future hashes by a number, in case someone keeps it in a set.

Code that imported the names before (``from asyncio import wait_for``) keeps asyncio's own. Not pinned, because it only
shows when waiters are cancelled at the very moment they are woken: Condition, Semaphore and Lock of 3.11 hand the turn
on in another way than those of 3.13.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_as_completed = asyncio.as_completed


@contextlib.contextmanager
def asyncio_pinned() -> Iterator[None]:
    """Within the block asyncio behaves as described above, in this process."""
    gathering: Any = asyncio.tasks._GatheringFuture  # type: ignore[attr-defined]
    saved = [getattr(asyncio, pin.__name__) for pin in _PINS]
    numbers = itertools.count(1)

    def number_as_hash(self: Any) -> int:
        number: int = getattr(self, "_simulated_number", 0)
        if not number:
            self._simulated_number = number = next(numbers)
        return number

    _replace(_PINS)
    gathering.__hash__ = number_as_hash
    try:
        yield
    finally:
        del gathering.__hash__
        _replace(saved)


def _replace(functions: Iterable[Callable[..., Any]]) -> None:
    for pin, function in zip(_PINS, functions, strict=True):
        setattr(asyncio, pin.__name__, function)
        setattr(asyncio.tasks, pin.__name__, function)


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


def gather(*coros_or_futures: Awaitable[Any], return_exceptions: bool = False) -> asyncio.Future[list[Any]]:
    """`asyncio.gather` as it is from Python 3.12 on."""
    loop = asyncio.get_running_loop()
    if not coros_or_futures:
        empty: asyncio.Future[list[Any]] = loop.create_future()
        empty.set_result([])
        return empty
    started: dict[Awaitable[Any], asyncio.Future[Any]] = {}
    for awaitable in coros_or_futures:
        if awaitable not in started:
            started[awaitable] = asyncio.ensure_future(awaitable)
    children = [started[awaitable] for awaitable in coros_or_futures]
    outer: Any = asyncio.tasks._GatheringFuture(children, loop=loop)  # type: ignore[attr-defined]
    unfinished = len(started)

    def child_done(child: asyncio.Future[Any]) -> None:
        nonlocal unfinished
        unfinished -= 1
        error = asyncio.CancelledError() if child.cancelled() else child.exception()
        if outer.done():
            return
        if error is not None and not return_exceptions:
            outer.set_exception(error)
        elif unfinished == 0 and outer._cancel_requested:
            outer.set_exception(asyncio.CancelledError())
        elif unfinished == 0:
            outer.set_result([_result_of(child) for child in children])

    already = [child for child in started.values() if child.done()]
    for child in started.values():
        if not child.done():
            child.add_done_callback(child_done)
    for child in already:
        child_done(child)
    return outer  # type: ignore[no-any-return]


def _result_of(child: asyncio.Future[Any]) -> Any:
    if child.cancelled():
        return asyncio.CancelledError()
    return child.exception() or child.result()


_PINS = (wait_for, as_completed, gather)
