"""Long work in slices: generators that yield where another step may come between.

A slice is sized in *units*: about the cost of looking at one row. Work says what it costs with `Slice.spend` and yields
when the slice is used up. Between two slices anything may have changed; a job looks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator

from pykvpool.model.ids import SessionId
from pykvpool.model.replies import Reply

#: What a job is: yields between slices, may end with a reply.
Work = Generator[None, None, Reply | None]


class Slice:
    """The units that one slice may spend; `slice_objects` of the configuration."""

    __slots__ = ("_left", "_size", "is_over")

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        #: What was spent last used the slice up. Work that may be done by then asks this before it goes on.
        self.is_over = False

    def spend(self, units: int) -> bool:
        """Account for work done; True: the slice is used up, yield now."""
        self._left -= units
        self.is_over = self._left <= 0
        if self.is_over:
            self._left = self._size
        return self.is_over

    def charge(self, other: Slice) -> None:
        """Account for what was spent of another slice; whether this one is used up, the next `spend` tells."""
        self._left -= other._size - other._left


class Pace:
    """What paces work that is begun in one step and carried on in others, each with a slice of its own."""

    __slots__ = ("cancelled", "work")

    def __init__(self, work: Slice) -> None:
        #: The slice of the step under way.
        self.work = work
        #: Nobody wants the result any more: come to an end.
        self.cancelled = False

    def spend(self, units: int) -> bool:
        return self.work.spend(units)


class Job:
    """Work under way, for a session's command or for the master itself (session None)."""

    __slots__ = ("finish", "session", "work")

    def __init__(self, work: Work, session: SessionId | None, finish: Callable[[Reply], None] | None) -> None:
        self.work = work
        #: The job ends with this session.
        self.session = session
        #: Takes the reply in which the work ends.
        self.finish = finish


class Jobs:
    """Jobs take turns, one slice a step."""

    def __init__(self) -> None:
        self._queue: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, job: Job) -> None:
        self._queue.append(job)

    def next(self) -> Job | None:
        """The job whose turn it is; `add` it again if it is not done."""
        return self._queue.popleft() if self._queue else None
