"""From a command to the event loop and back: signals cancel, whatever happened is cleaned up before the process ends.

A cancelled command ends its transfers (they drain first) and its child processes; only then does Ctrl-C or SIGTERM take
effect. A second Ctrl-C does not wait.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TypeVar

from pykvpool.cli.boundary import Terminated
from pykvpool.runtime import new_event_loop

T = TypeVar("T")


def run(main: Callable[[], Coroutine[object, object, T]]) -> T:
    """Run `main` to its end. Ctrl-C raises KeyboardInterrupt, SIGTERM `Terminated`, each after `main` was cancelled."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_with_sigterm(main))


async def _with_sigterm(main: Callable[[], Awaitable[T]]) -> T:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    told = False

    def terminate() -> None:
        nonlocal told
        if not told and task is not None:
            told = True  # told again (a supervisor, a process group), it must not give up what it is cleaning up
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await main()
    except asyncio.CancelledError:
        if told:
            raise Terminated from None
        raise
    finally:
        if not told:
            loop.remove_signal_handler(signal.SIGTERM)


async def all_of(works: Iterable[Coroutine[object, object, object]]) -> None:
    """Run all at once. The first error ends the others and is raised itself, not in a group: it is what people see."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise _first(errors) from None


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
