"""Threads for file work that may never end: a pipe that nobody writes, a terminal where nobody types.

asyncio's own threads are waited for when the loop ends, so a blocked read would hold up Ctrl-C until somebody types.
These are daemons: work that was cancelled is left behind, and ends with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LeftBehind(Executor):
    """One thread for each piece of work; meant for pieces of megabytes, one at a time."""

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
                future.set_exception(error)

        threading.Thread(target=run, name="file work", daemon=True).start()
        return future
