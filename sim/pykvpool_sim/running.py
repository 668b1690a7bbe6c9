"""The state of the process while a simulated loop runs: set before, put back after.

The loop is asyncio's running loop, its hooks see asynchronous generators, asyncio is pinned, the real world refused,
and the garbage collector waits to be called: a collection at a random moment runs finalizers at a random moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Iterator
from contextvars import ContextVar

from pykvpool_sim.escapes import real_world_refused
from pykvpool_sim.generators import Generators
from pykvpool_sim.pins import asyncio_pinned

#: Set inside `collector_held`.
_HELD: ContextVar[bool] = ContextVar("_HELD", default=False)


@contextlib.contextmanager
def in_charge(loop: asyncio.AbstractEventLoop, generators: Generators, guarded: tuple[str, ...]) -> Iterator[None]:
    """Within the block `loop` runs. Raises `RuntimeError` where another loop runs already."""
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("a simulated loop cannot run inside another loop")
    hooks = sys.get_asyncgen_hooks()
    with collector_held(), asyncio_pinned(), real_world_refused(guarded):
        asyncio._set_running_loop(loop)
        sys.set_asyncgen_hooks(firstiter=generators.begins, finalizer=generators.dropped)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)


@contextlib.contextmanager
def collector_held() -> Iterator[None]:
    """Within the block the garbage collector runs when it is called, and then looks only at what was made within the
    block. Blocks nest; the outermost counts."""
    if _HELD.get():
        yield
        return
    collecting = gc.isenabled()
    gc.disable()
    gc.freeze()
    token = _HELD.set(True)
    try:
        yield
    finally:
        _HELD.reset(token)
        gc.unfreeze()
        if collecting:
            gc.enable()
