"""What an eviction policy is: an order over rows, and nothing else.

A policy is told what comes, is used and goes, and names the next candidate. It does not know why a candidate may not
go (leases, pins, children): the evictor sets such rows aside and gives them back when they may. So a policy holds a row
from `insert` or `put_back` until `take`, `set_aside` or `remove`.

Moments (`now`) are integers that never fall and are equal for everything done in one step; a policy may compare and
subtract them, and has no other clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

#: What `take` answers instead of a row when it has done a bounded amount of work and there may be more: ask again.
LOOK_AGAIN = -2
#: How many rows a policy, or the evictor, may pass over before it answers `LOOK_AGAIN`.
LOOK_ROWS = 32


class Candidate(Struct, frozen=True, gc=False):
    """What a policy learns about a new row."""

    row: int
    #: Scope and hash identify the object also after it was evicted and put again, in another row.
    scope: int
    hash: bytes
    size_bytes: int
    #: Row of the parent block, -1 for the first of a chain.
    parent: int
    #: Number of ancestors.
    depth: int


class Policy(Protocol):
    """An eviction policy. Rows are small integers, reused after `remove`."""

    def insert(self, candidate: Candidate, now: int) -> None:
        """A new object; its row is not held."""
        ...

    def touch(self, rows: Iterable[int], now: int) -> None:
        """These were just used. Some may not be held (they are set aside, or pinned): their use counts all the same."""
        ...

    def remove(self, row: int, evicted: bool) -> None:
        """The object is gone, by this policy's choice or not; its row is held, taken or set aside."""
        ...

    def take(self, now: int) -> int | None:
        """Stop holding the row that should go next, and name it; None where none is held.

        `LOOK_AGAIN` where finding it takes more than passing over `LOOK_ROWS` others: the step has to end some time.
        """
        ...

    def set_aside(self, row: int) -> None:
        """Stop holding this row, out of turn; `put_back` or `remove` follows."""
        ...

    def put_back(self, row: int) -> None:
        """Hold a row again that was taken or set aside, in the place that its history gives it."""
        ...

    def last_used(self, row: int) -> int:
        """Moment of the last insert or touch of a row."""
        ...


class Stamps:
    """One moment per row: when it was last used. What every policy can answer, and recency policies order by."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = array("Q")

    def set(self, row: int, now: int) -> None:
        """Also makes room for rows not seen before."""
        if row >= len(self.at):
            self.at.extend([0] * (row + 1 - len(self.at)))
        self.at[row] = now

    def touch(self, rows: Iterable[int], now: int) -> None:
        """Rows must have been `set` before. This loop is the hot path of every lookup."""
        at = self.at
        for row in rows:
            at[row] = now
