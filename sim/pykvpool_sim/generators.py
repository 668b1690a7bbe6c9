"""Asynchronous generators in use: closed in their own life when dropped, or dropped as they are when that life is dead.

Python calls an event loop's two hooks when such a generator takes its first step and when nobody refers to it any more.
If the second hook does nothing, Python frees the frame without running it, which is what a crash asks for.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import AsyncGenerator, Callable
from contextvars import Context, copy_context
from typing import Any

from pykvpool_sim.life import CURRENT_LIFE, State


class Generators:
    """The hooks of one loop. `close_later(generator, context)` is asked to close a dropped one soon."""

    def __init__(self, close_later: Callable[[AsyncGenerator[Any, Any], Context], None]) -> None:
        self._close_later = close_later
        self._numbers = itertools.count(1)
        #: In the order of their first step.
        self._in_use: weakref.WeakValueDictionary[int, AsyncGenerator[Any, Any]] = weakref.WeakValueDictionary()
        #: id(generator) -> the context of its first step. An id may be stale; each new generator overwrites its own.
        self._contexts: dict[int, Context] = {}

    def begins(self, generator: AsyncGenerator[Any, Any]) -> None:
        """`sys.set_asyncgen_hooks(firstiter=...)`."""
        self._in_use[next(self._numbers)] = generator
        self._contexts[id(generator)] = copy_context()

    def dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        """`sys.set_asyncgen_hooks(finalizer=...)`."""
        context = self._contexts.pop(id(generator))
        life = context.get(CURRENT_LIFE)
        if life is None or life.state is not State.DEAD:
            self._close_later(generator, context)

    async def close_all(self) -> None:
        """Close those in use, the oldest first."""
        for generator in list(self._in_use.values()):
            await generator.aclose()
