"""From errors to return codes: what every method of the store leaves through.

Inside, a method is written as everywhere in pykvpool: it returns a value or raises a `PoolError`. One of the decorators
here turns the error into what Mooncake's callers expect at that place (a negative number, an empty value, a list of
codes) and remembers it, so that a program that wants more than a number can ask `last_error`.

Codes are `PoolError.code`: they agree with Mooncake's where the meaning is the same. Wrong *types* (a float where an
address belongs) stay `TypeError`, as with Mooncake's own binding.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from pykvpool.errors import KeyNotFound, PoolError

log = logging.getLogger("pykvpool.mooncake")

P = ParamSpec("P")
S = TypeVar("S", bound="Failing")
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])

#: Success. Everything else that is negative is the code of a `PoolError`.
OK = 0
#: `batch_put_session_start`: the key is there already (Mooncake's OBJECT_ALREADY_EXISTS).
ALREADY_EXISTS = -705
#: `query_task`: no such task (Mooncake's TASK_NOT_FOUND); there are no tasks here.
TASK_NOT_FOUND = -1400


class Failing:
    """Remembers why calls failed, by thread."""

    def __init__(self) -> None:
        self._last = threading.local()

    def last_error(self) -> PoolError | None:
        """Why the latest failed call of this thread failed: kind, message, fields. Not in Mooncake's API."""
        error: PoolError | None = getattr(self._last, "error", None)
        return error

    def failed(self, what: str, error: PoolError) -> int:
        """Note the error of a call or of one key; returns its code. A miss is an answer and not logged."""
        self._last.error = error
        if not isinstance(error, KeyNotFound):
            log.warning("%s: %s: %s", what, error.kind, error)
        return error.code


def code(method: Callable[Concatenate[S, P], int]) -> Callable[Concatenate[S, P], int]:
    """The method's number, or the code of its error."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return method(self, *args, **kwargs)
        except PoolError as error:
            return self.failed(method.__name__, error)

    return call


def value(fallback: Callable[[], Any]) -> Callable[[M], M]:
    """The method's value, or ``fallback()``, an empty one of its kind, where it raises."""

    def decorate(method: M) -> M:
        @functools.wraps(method)
        def call(self: Failing, /, *args: object, **kwargs: object) -> object:
            try:
                return method(self, *args, **kwargs)
            except PoolError as error:
                self.failed(method.__name__, error)
                return fallback()

        return cast("M", call)

    return decorate


def per_key(method: Callable[Concatenate[S, P], list[T]]) -> Callable[Concatenate[S, P], list[T | int]]:
    """One result per key, the method's first argument; where the whole batch failed, the code of its error for each."""
    first = list(inspect.signature(method).parameters)[1]

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> list[T | int]:
        try:
            return list(method(self, *args, **kwargs))
        except PoolError as error:
            keys = args[0] if args else kwargs[first]
            return [self.failed(method.__name__, error)] * len(cast("Sequence[object]", keys))

    return call
