"""What a node was asked beside jobs: lookups, until they are released, and resets. A node that goes ends them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pykvpool.errors import DeadlineExceeded, PoolError, Unavailable
from pykvpool.host.agent import wire
from pykvpool.host.agent.outbox import Claim
from pykvpool.host.port import Answer, Lapsed
from pykvpool.host.work import Emit


class OpenLookups:
    """Lookups that were not released. Of others nothing is told."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        #: Whether each was answered.
        self._answered: dict[int, bool] = {}

    def begin(self, lookup_id: int) -> Claim:
        self._answered[lookup_id] = False
        return Claim(lambda: lookup_id in self._answered, lambda error: self.fail(lookup_id, error))

    def fail(self, lookup_id: int, error: PoolError) -> None:
        """It will not be answered."""
        self.answered(Answer(lookup_id, error=error.message, reason=error.kind))

    def released(self, lookup_id: int) -> bool:
        """False: there is nothing to release."""
        return self._answered.pop(lookup_id, None) is not None

    def answered(self, answer: Answer) -> None:
        if answer.lookup_id in self._answered:
            self._answered[answer.lookup_id] = True
            if answer.error:
                del self._answered[answer.lookup_id]
            self._emit(answer)

    def lapsed(self, event: Lapsed) -> None:
        if self._answered.pop(event.lookup_id, None) is not None:
            self._emit(event)

    def lose(self, error: PoolError) -> None:
        """The node is gone, and all that it held."""
        for lookup_id, answered in list(self._answered.items()):
            if answered:
                self.lapsed(Lapsed(lookup_id))
            else:
                self.fail(lookup_id, error)


class OpenResets:
    """Resets that somebody waits for."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._last = 0

    async def run(self, say: Callable[[int], None], timeout_s: float) -> None:
        """`say` tells the node, under a new number. Raises what kept the reset from being sure."""
        self._last += 1
        number = self._last
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            say(number)
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise DeadlineExceeded(f"the reset was not over within {timeout_s:g} s") from None
        finally:
            del self._waiting[number]

    def done(self, message: wire.ResetDone) -> None:
        future = self._waiting.get(message.number)
        if future is not None and not future.done():
            if message.error:
                future.set_exception(Unavailable(message.error))
            else:
                future.set_result(None)

    def lose(self, error: PoolError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
