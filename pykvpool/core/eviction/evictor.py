"""Which rows may go, and in what order: the policy's, filtered by what protects a block.

Every resident row is *queued* in the policy, or *soft*: queued in a second instance of the policy that is asked only
when the first has nothing left. Or it came up and may not go (leased, hard pinned, has children): then it is *parked*,
and costs nothing more until whatever held it ends and `recheck` gives it back. Or all its copies lie where nothing may
be placed now, so that evicting it makes no room: then it is *elsewhere* until its node is back (`requeue_elsewhere`).
Rows are examined lazily: a lease on a queued row is noticed only when the row comes up.

Orphans left by a loss or a removal go before everything (`orphans`).

A search for room *takes* rows and may go on over several steps. A taken row is used, pinned or gets a child meanwhile:
then it is given back at once, and the search is told (`spoiled`) to look at all of its rows again. When a search is
decided its rows are *sealed*: nobody finds them any more, until the last one is evicted.

Knows rows, chains, pins and leases (by count); nothing of segments or sizes asked for: that is `plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator

from pykvpool.core.catalog import NONE, RESIDENT, Catalog
from pykvpool.core.eviction.base import LOOK_AGAIN, LOOK_ROWS, Candidate, Policy
from pykvpool.core.eviction.orphans import Orphans
from pykvpool.core.jobs import Slice
from pykvpool.errors import invariant
from pykvpool.model.objects import Pin

ABSENT, QUEUED, SOFT, PARKED, TAKEN, ELSEWHERE = 0, 1, 2, 3, 4, 5


class Evictor:
    """Order and eligibility of resident rows."""

    def __init__(self, catalog: Catalog, new_policy: Callable[[], Policy]) -> None:
        self._catalog = catalog
        self._normal = new_policy()
        self._soft = new_policy()
        #: Row -> ABSENT, QUEUED, SOFT, PARKED, ELSEWHERE or TAKEN (by the search under way).
        self.where = bytearray()
        #: Rows that were set to ELSEWHERE; those that are something else by now are skipped.
        self._elsewhere: list[int] = []
        #: Rows in state SOFT; while there are none, touches need not look for them.
        self._soft_count = 0
        #: Rises whenever something became free or evictable: until then, what found no room need not try again.
        self.room_version = 0
        self._orphans = Orphans(catalog)
        #: Of the search under way: taken row -> where it was, in the order of taking, ...
        self._taken_from: dict[int, int] = {}
        #: ... parent -> how many of its children are taken (no zeros), ...
        self._taken_children: dict[int, int] = {}
        #: ... whether taken rows were given back because of what happened to them, or went by themselves, ...
        self.spoiled = False
        #: ... whether any row was given back at all, ...
        self._restored = False
        #: ... and whether nobody is to find the taken rows: they are about to go.
        self.sealed = False

    # -- what happens to rows ----------------------------------------------------------------------------------------

    def added(self, row: int, now: int) -> None:
        if row >= len(self.where):
            self.where.extend(bytes(row + 1 - len(self.where)))
        invariant(self.where[row] == ABSENT, "a new object's row is not known to the evictor")
        self.where[row] = QUEUED
        self._normal.insert(self._candidate(row), now)
        self.room_version += 1
        self._disturb(self._catalog.parent[row])

    def removed(self, row: int, evicted: bool) -> None:
        """The row is still in its chain."""
        where = self.where[row]
        if where == TAKEN:
            where = self._untake(row)
            self.spoiled = True
        self.where[row] = ABSENT
        self._normal.remove(row, evicted)
        if where == SOFT:
            self._soft_count -= 1
            self._soft.remove(row, evicted)

    def orphaned(self, ghost: int, parent: int) -> None:
        """The resident parent in this row became the ghost, in another row if its bytes linger, and left children."""
        if ghost != parent and parent in self._taken_children:
            self._taken_children[ghost] = self._taken_children.pop(parent)
        self._orphans.add(ghost)
        self.room_version += 1

    def touch(self, rows: Collection[int], now: int) -> None:
        if self._taken_from:
            for row in rows:
                self._disturb(row)
        self._normal.touch(rows, now)
        if self._soft_count:
            self._soft.touch([row for row in rows if self.where[row] == SOFT], now)

    def last_used(self, row: int) -> int:
        return self._normal.last_used(row)

    def recheck(self, row: int) -> None:
        """Something that protected the row ended: if it was parked and nothing else protects it, queue it again."""
        if self.where[row] == PARKED and self.reason_to_stay(row) == "":
            self._requeue(row)

    def pin_changed(self, row: int) -> None:
        """Also counts as room: a pin may have gone."""
        self._disturb(row)
        if self.where[row] == SOFT and self._catalog.pin[row] != Pin.SOFT:
            self._soft_count -= 1
            self._soft.remove(row, evicted=False)
            self._requeue(row)
        self.recheck(row)

    def reason_to_stay(self, row: int) -> str:
        """Why the row may not go now ("leased", "hard_pinned", "not_tail"), or an empty text."""
        catalog = self._catalog
        if catalog.leases[row]:
            return "leased"
        if catalog.pin[row] == Pin.HARD:
            return "hard_pinned"
        if catalog.children[row] and catalog.children[row] != self._taken_children.get(row, 0):
            return "not_tail"
        return ""

    # -- searches ----------------------------------------------------------------------------------------------------

    def take(self, now: int) -> int | None:
        """The next row that may go, assuming that those taken before go too; None: nothing is left.

        `LOOK_AGAIN`: some rows were passed over, there may be more. Every taken row must be given back by `restore`,
        `leave_elsewhere` or `removed` before `end_search`.
        """
        row = self._take_orphan()
        if row is None:
            row = self._take_normal(now)
        if row is None and self._soft_count:
            row = self._take_soft(now)
        if row is None or row == LOOK_AGAIN:
            return row
        self._taken_from[row] = self.where[row]
        self.where[row] = TAKEN
        parent = self._catalog.parent[row]
        if parent != NONE:
            # A block taken once more, after its parent: the parent comes up again too, so that children come first.
            self._disturb(parent)
            self._taken_children[parent] = self._taken_children.get(parent, 0) + 1
            if self._catalog.state[parent] == RESIDENT:
                version = self.room_version
                self.recheck(parent)
                # Nothing became evictable that was not: its children have not gone yet.
                self.room_version = version
        return row

    def taken(self) -> list[int]:
        """Taken rows in the order of taking: children before parents."""
        return list(self._taken_from)

    def is_taken(self, row: int) -> bool:
        return self.where[row] == TAKEN

    def restore(self, row: int) -> None:
        """A taken row does not go after all: back to its place."""
        where = self.where[row] = self._untake(row)
        (self._soft if where == SOFT else self._normal).put_back(row)
        self._restored = True

    def leave_elsewhere(self, row: int) -> None:
        """A taken row does not go, and need not come up again while its copies lie where nothing may be placed."""
        if self._untake(row) == SOFT:
            self._soft_count -= 1
            self._soft.remove(row, evicted=False)
        self.where[row] = ELSEWHERE
        self._elsewhere.append(row)

    def seal(self) -> None:
        """From now on nobody finds the taken rows: no lease, use, pin or child comes to them any more."""
        self.sealed = True

    def is_hidden(self, row: int) -> bool:
        """Is the resident row as good as gone for whoever looks for it?"""
        return self.sealed and self.where[row] == TAKEN

    def end_search(self) -> None:
        invariant(not self._taken_from, "a search ends when no row is taken any more")
        if self._restored:
            self._orphans.restart()
        self.spoiled = self.sealed = self._restored = False

    def _disturb(self, row: int) -> None:
        """Something happened to the row that speaks against its going now, or at its turn."""
        if row in self._taken_from:
            self.restore(row)
            self.spoiled = True

    def _untake(self, row: int) -> int:
        """Returns where it was."""
        parent = self._catalog.parent[row]
        if parent != NONE:
            left = self._taken_children[parent] - 1
            if left:
                self._taken_children[parent] = left
            else:
                del self._taken_children[parent]
        return self._taken_from.pop(row)

    # -- the rest ----------------------------------------------------------------------------------------------------

    def requeue_elsewhere(self, work: Slice) -> Generator[None, None, None]:
        """A node is back: rows that were left out come up again. In slices."""
        rows, self._elsewhere = self._elsewhere, []
        for row in rows:
            if self.where[row] == ELSEWHERE:
                self._requeue(row)
            if work.spend(1):
                yield

    def held_count(self) -> int:
        """Rows not absent; for checks."""
        return sum(where != ABSENT for where in self.where)

    def _take_normal(self, now: int) -> int | None:
        for _ in range(LOOK_ROWS):
            row = self._normal.take(now)
            if row is None or row == LOOK_AGAIN:
                return row
            if self.reason_to_stay(row):
                self.where[row] = PARKED
            elif self._catalog.pin[row] == Pin.SOFT:
                self.where[row] = SOFT
                self._soft_count += 1
                self._soft.insert(self._candidate(row), self._normal.last_used(row))
            else:
                return row
        return LOOK_AGAIN

    def _take_soft(self, now: int) -> int | None:
        for _ in range(LOOK_ROWS):
            row = self._soft.take(now)
            if row is None or row == LOOK_AGAIN or not self.reason_to_stay(row):
                return row
            # Parked in the first policy: `recheck` queues it there, and it comes back here when it is asked for.
            self._soft_count -= 1
            self._soft.remove(row, evicted=False)
            self.where[row] = PARKED
        return LOOK_AGAIN

    def _take_orphan(self) -> int | None:
        for _ in range(LOOK_ROWS):
            row = self._orphans.next()
            if row is None or row == LOOK_AGAIN:
                return row
            if self.where[row] == QUEUED and not self.reason_to_stay(row) and self._catalog.pin[row] != Pin.SOFT:
                self._normal.set_aside(row)
                return row
        return LOOK_AGAIN

    def _requeue(self, row: int) -> None:
        self.where[row] = QUEUED
        self._normal.put_back(row)
        self.room_version += 1

    def _candidate(self, row: int) -> Candidate:
        catalog = self._catalog
        return Candidate(
            row, catalog.scope[row], catalog.hash_of(row), catalog.size[row], catalog.parent[row], catalog.depth[row]
        )
