"""`MooncakeDistributedStoreAsync`: the same store for programs with an event loop.

Every method has a twin whose name begins with ``async_`` and that is awaited. It runs in a thread of the loop's
executor; a caller that is cancelled goes on only when the call is over, because its buffers are in use until then.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from pykvpool.runtime import drain
from pykvpool_connector.mooncake.store import MooncakeDistributedStore

PREFIX = "async_"


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """A store whose methods can also be awaited: ``await store.async_put(key, value)``."""

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = None
        if name.startswith(PREFIX) and not name.startswith(PREFIX + "_"):
            method = getattr(type(self), name.removeprefix(PREFIX), None)
        if method is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        bound = functools.partial(method, self)

        @functools.wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(None, functools.partial(bound, *args, **kwargs))
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                await drain(future)
                raise

        return call
