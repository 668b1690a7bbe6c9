"""Tasks and futures that hash by creation number, and how to say what a callback is and where a task stands.

asyncio keeps tasks in sets (TaskGroup, wait, all_tasks) and walks them when it cancels. Objects hash by address unless
told otherwise, so that order would differ from process to process; by number it does not.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import linecache
from collections.abc import Coroutine, Generator
from contextvars import Context
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from pykvpool_sim.life import CURRENT_LIFE

if TYPE_CHECKING:
    from pykvpool_sim.life import Life

T = TypeVar("T")

#: Frames shown of one task.
_MAX_FRAMES = 30


class SimTask(asyncio.Task[T]):
    """A task with a number (its strand, its hash) and the life it belongs to."""

    def __init__(
        self,
        coroutine: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        number: int,
        context: Context,
        loop: asyncio.AbstractEventLoop,
        name: str | None,
    ) -> None:
        # Before the base class, which puts the task in a set at once.
        self.number = number
        self.life: Life | None = context.get(CURRENT_LIFE)
        #: What the trace calls it.
        self.identity = f"{number}:{getattr(coroutine, '__qualname__', '?')}"
        owner = self.life.name if self.life is not None else "world"
        super().__init__(coroutine, loop=loop, name=name or f"{owner}/{number}", context=context)

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[T]):
    """A future with a number."""

    def __init__(self, *, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


def task_of(callback: object) -> SimTask[Any] | None:
    """The task whose step or wake-up `callback` is; None for a plain callback."""
    owner = getattr(callback, "__self__", None)
    return owner if type(owner) is SimTask else None


def identity_of(callback: object) -> str:
    """The same words for the same callback in every run: a task's number and coroutine, or a function's name. asyncio's
    own functions share one name, because versions of Python call them differently."""
    task = task_of(callback)
    if task is not None:
        return task.identity
    while isinstance(callback, functools.partial):
        callback = callback.func
    code = getattr(callback, "__code__", None)
    if code is None:
        return _name(callback)
    name = _names.get(code)
    if name is None:
        name = _names[code] = _name(callback)
    return name


#: Names that were looked up, by a function's code: closures are made anew all the time, code is not.
_names: dict[object, str] = {}


def _name(callback: object) -> str:
    if str(getattr(callback, "__module__", "")).partition(".")[0] in ("asyncio", "_asyncio"):
        return "asyncio"
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def describe(task: SimTask[Any]) -> str:
    """Name and stack of a task that waits, the innermost await last."""
    lines = [f"task {task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')}):"]
    awaited: object = task.get_coro()
    while awaited is not None and len(lines) <= _MAX_FRAMES:
        frame, inner = _step_in(awaited)
        if frame is not None:
            lines.append(_line(frame, awaited))
        elif not inspect.isawaitable(awaited) and inner is None:
            break
        elif inner is None:
            lines.append(f"    waits for {type(awaited).__qualname__}")
        awaited = inner
    return "\n".join(lines)


def _step_in(awaited: object) -> tuple[FrameType | None, object]:
    """The frame of a coroutine or generator, and what that awaits in turn."""
    for kind in ("cr", "gi", "ag"):
        frame = getattr(awaited, f"{kind}_frame", None)
        if frame is not None:
            inner = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)
            return frame, inner
    return None, None


def _line(frame: FrameType, awaited: object) -> str:
    path, number = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(path, number).strip()
    return f"    {path}:{number} in {getattr(awaited, '__qualname__', frame.f_code.co_name)}: {source}"
