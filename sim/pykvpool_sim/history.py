"""What was asked of the system under test, and what it answered, with the world's time on both: food for checkers.

An operation that was invoked and never returned *may* have happened, now or at any time later; `UNKNOWN` says the same
of one that returned without telling (a deadline, a lost connection). Checkers must allow for both outcomes.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

T = TypeVar("T")

Value = object


class Outcome(enum.Enum):
    """How an operation ended."""

    #: Not yet, or never: its process crashed.
    OPEN = "open"
    OK = "ok"
    #: It certainly did not happen.
    FAILED = "failed"
    #: It may have happened, or may yet.
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Operation:
    """One call. Mutable until it returns."""

    number: int
    #: Who called: operations of one process follow each other.
    process: str
    name: str
    arguments: dict[str, Value]
    invoked_ns: int
    #: Position of the invocation among all invocations and returns: orders what has equal times.
    invoked_at: int
    returned_ns: int | None = None
    returned_at: int | None = None
    outcome: Outcome = Outcome.OPEN
    #: What it returned, or the error's text.
    value: Value = None


class Listener(Protocol):
    """Hears a history as it grows."""

    def invoked(self, operation: Operation) -> None: ...

    def returned(self, operation: Operation) -> None: ...


@dataclass(slots=True)
class History:
    """Grows with the run, in the order in which things happened."""

    #: Reads the world's time.
    now_ns: Callable[[], int]
    #: Told of each invocation and return, when it happens.
    listener: Listener | None = None
    operations: list[Operation] = field(default_factory=list)
    _happened: int = 0

    def invoke(self, process: str, name: str, **arguments: Value) -> Operation:
        """A call begins."""
        operation = Operation(len(self.operations), process, name, arguments, self.now_ns(), self._next())
        self.operations.append(operation)
        if self.listener is not None:
            self.listener.invoked(operation)
        return operation

    def returns(self, operation: Operation, outcome: Outcome, value: Value = None) -> None:
        """It ends. Raises ValueError where it ended before, or `outcome` is no end."""
        if operation.outcome is not Outcome.OPEN or outcome is Outcome.OPEN:
            raise ValueError(
                f"operation {operation.number} {operation.name} cannot go {operation.outcome} -> {outcome}"
            )
        operation.outcome, operation.value = outcome, value
        operation.returned_ns, operation.returned_at = self.now_ns(), self._next()
        if self.listener is not None:
            self.listener.returned(operation)

    async def record(
        self,
        process: str,
        name: str,
        call: Awaitable[T],
        *,
        failed: Callable[[Exception], bool] = lambda error: False,
        **arguments: Value,
    ) -> T:
        """Await `call` and note how it went. `failed` says of which errors it is certain that nothing happened; all
        others are `UNKNOWN`, and so is cancellation. The error goes on to the caller."""
        operation = self.invoke(process, name, **arguments)
        try:
            value = await call
        except Exception as error:
            outcome = Outcome.FAILED if failed(error) else Outcome.UNKNOWN
            self.returns(operation, outcome, f"{type(error).__name__}: {error}")
            raise
        except BaseException as error:
            self.returns(operation, Outcome.UNKNOWN, type(error).__name__)
            raise
        self.returns(operation, Outcome.OK, value)
        return value

    def of(self, name: str) -> Iterator[Operation]:
        """The operations of one name, by invocation."""
        return (operation for operation in self.operations if operation.name == name)

    def lines(self) -> Iterator[str]:
        """One JSON text for each operation; values that JSON does not know appear as their `repr`."""
        for operation in self.operations:
            yield json.dumps(
                {
                    "number": operation.number,
                    "process": operation.process,
                    "name": operation.name,
                    "arguments": operation.arguments,
                    "invoked_ns": operation.invoked_ns,
                    "returned_ns": operation.returned_ns,
                    "outcome": operation.outcome.value,
                    "value": operation.value,
                },
                default=repr,
            )

    def _next(self) -> int:
        self._happened += 1
        return self._happened
