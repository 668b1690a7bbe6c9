"""Callbacks that are ready, and timers that will be: the two queues of the loop.

`ReadyQueue` offers the strands that could run now to a chooser and takes out the one chosen; within a strand the order
stays. `TimerQueue` is a heap by world time, then by order of creation: timers of one instant become ready in the order
in which they were set.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pykvpool_sim.choosers import CHOICE_WINDOW, Chooser, Fifo
from pykvpool_sim.life import Life, State
from pykvpool_sim.tasks import SimTask

#: Entries looked at for one choice. One strand with a long queue must not make every choice walk all of it.
_SCAN_LIMIT = 4 * CHOICE_WINDOW
#: Cancelled timers are swept out after this many cancellations, or half as many as there are timers if that is more.
_SWEEP_FROM = 100


@dataclass(slots=True, eq=False)
class Entry:
    """A handle, whose it is, and in which order it has to stay."""

    handle: asyncio.Handle
    life: Life | None
    #: A task's number, or minus the life's number for plain callbacks (0: the world's).
    strand: int
    #: See `pykvpool_sim.tasks.identity_of`.
    identity: str
    #: The task whose step it is; None for plain callbacks.
    task: SimTask[Any] | None


class ReadyQueue:
    """Entries in the order in which they became ready."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)

    def add_all(self, entries: Iterable[Entry]) -> None:
        self._entries.extend(entries)

    def take(self, chooser: Chooser) -> Entry | None:
        """Removes and returns what `chooser` wants to run; None: nothing can. Parks a paused life's entries."""
        entries = self._entries
        if not entries:
            return None
        strands: list[int] = []
        positions: list[int] = []
        window = 1 if isinstance(chooser, Fifo) else CHOICE_WINDOW
        position = 0
        while position < len(entries) and len(strands) < window and position < _SCAN_LIMIT:
            entry = entries[position]
            if entry.handle.cancelled():
                del entries[position]
            elif entry.life is not None and entry.life.state is State.PAUSED:
                entry.life.parked.append(entry)
                del entries[position]
            else:
                if entry.strand not in strands:
                    strands.append(entry.strand)
                    positions.append(position)
                position += 1
        if not strands:
            return None
        chosen = positions[chooser.choose(strands)] if len(strands) > 1 else positions[0]
        entry = entries[chosen]
        del entries[chosen]
        return entry

    def withdraw(self, life: Life) -> list[Entry]:
        """Removes and returns all of a life's entries, those parked included."""
        gone = [entry for entry in self._entries if entry.life is life] + life.parked
        self._entries = deque(entry for entry in self._entries if entry.life is not life)
        life.parked = []
        return gone


class Timer(NamedTuple):
    """A handle that becomes ready at a time. No two have one number, so entries are never compared."""

    world_ns: int
    number: int
    entry: Entry


class TimerQueue:
    """Timers, the earliest first."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        #: No timer is due before: looked at in every turn, so it is kept at hand. (A cancelled one may be the first.)
        self.first_ns: float = math.inf
        #: Cancellations since the last sweep.
        self._cancelled_count = 0

    def add(self, timer: Timer) -> None:
        heapq.heappush(self._heap, timer)
        self.first_ns = min(self.first_ns, timer.world_ns)

    def next_ns(self) -> int | None:
        """When the next timer that still counts is due; None where there is none."""
        while self._heap and self._heap[0].entry.handle.cancelled():
            heapq.heappop(self._heap)
        self.first_ns = self._heap[0].world_ns if self._heap else math.inf
        return self._heap[0].world_ns if self._heap else None

    def pop_due(self, now_ns: int) -> list[Entry]:
        """Removes and returns what is due, in order."""
        due: list[Entry] = []
        while (next_ns := self.next_ns()) is not None and next_ns <= now_ns:
            due.append(heapq.heappop(self._heap).entry)
        return due

    def note_cancelled(self) -> None:
        """A timer was cancelled. Calls with a deadline leave one each, so they are swept out in time."""
        self._cancelled_count += 1
        if self._cancelled_count > _SWEEP_FROM and 2 * self._cancelled_count > len(self._heap):
            self._keep(lambda timer: not timer.entry.handle.cancelled())
            self._cancelled_count = 0

    def withdraw(self, life: Life) -> list[Timer]:
        """Removes and returns all timers of a life, the earliest first."""
        gone = sorted(timer for timer in self._heap if timer.entry.life is life)
        self._keep(lambda timer: timer.entry.life is not life)
        return [timer for timer in gone if not timer.entry.handle.cancelled()]

    def _keep(self, wanted: Callable[[Timer], bool]) -> None:
        self._heap = [timer for timer in self._heap if wanted(timer)]
        heapq.heapify(self._heap)
        self.first_ns = self._heap[0].world_ns if self._heap else math.inf
