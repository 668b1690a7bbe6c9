"""Which rows may go, and in what order: the policy's, filtered by what protects a block.

Every resident row is *queued* in the policy, or *soft*: queued in a second instance of the policy that is asked only
when the first has nothing left. Or it came up and may not go (leased, hard pinned, has children): then it is *parked*,
and costs nothing more until whatever held it ends and `recheck` gives it back. Or all its copies lie where nothing may
be placed now, so that evicting it makes no room: then it is *elsewhere* until its node is back (`requeue_elsewhere`).
Rows are examined lazily: a lease on a queued row is noticed only when the row comes up.

Orphans left by a loss or a removal go before everything: nobody can reach them by a prefix. They are found from the
ghost above them, deepest first.

Knows rows, chains, pins and leases (by count); nothing of segments or sizes asked for: that is `plan`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable

from pykvpool.core.catalog import GHOST, NONE, RESIDENT, Catalog
from pykvpool.core.eviction.base import Candidate, Policy
from pykvpool.core.jobs import Slice
from pykvpool.errors import invariant
from pykvpool.model.objects import Pin

ABSENT, QUEUED, SOFT, PARKED, TAKEN, ELSEWHERE = 0, 1, 2, 3, 4, 5
#: The list of ghosts to visit is cleaned of those that are none any more when it has grown by about this many.
PRUNE_ROOTS = 1_024


class Evictor:
    """Order and eligibility of resident rows."""

    def __init__(self, catalog: Catalog, new_policy: Callable[[], Policy]) -> None:
        self._catalog = catalog
        self._normal = new_policy()
        self._soft = new_policy()
        #: Row -> ABSENT, QUEUED, SOFT, PARKED, ELSEWHERE or TAKEN (by the plan under way; never between steps).
        self.where = bytearray()
        #: Rows that were set to ELSEWHERE; those that are something else by now are skipped.
        self._elsewhere: list[int] = []
        #: Rows in state SOFT; while there are none, touches need not look for them.
        self._soft_count = 0
        #: Rises whenever something became free or evictable: until then, what found no room need not try again.
        self.room_version = 0
        #: Ghosts whose subtrees go first, the way down into the first one, and its rows that are found to be stuck.
        self._roots: deque[int] = deque()
        self._prune_at = PRUNE_ROOTS
        self._path: list[int] = []
        self._stuck: set[int] = set()
        #: Of the plan under way: row -> where it was, and parent -> how many of its children are taken.
        self._taken_from: dict[int, int] = {}
        self._taken_children: dict[int, int] = {}

    # -- what happens to rows ----------------------------------------------------------------------------------------

    def added(self, row: int, now: int) -> None:
        if row >= len(self.where):
            self.where.extend(bytes(row + 1 - len(self.where)))
        invariant(self.where[row] == ABSENT, "a new object's row is not known to the evictor")
        self.where[row] = QUEUED
        self._normal.insert(self._candidate(row), now)
        self.room_version += 1

    def removed(self, row: int, evicted: bool) -> None:
        where = self._taken_from.pop(row, self.where[row])
        self.where[row] = ABSENT
        self._normal.remove(row, evicted)
        if where == SOFT:
            self._soft_count -= 1
            self._soft.remove(row, evicted)

    def orphaned(self, ghost: int) -> None:
        """A resident parent became this ghost, and left children."""
        self._roots.append(ghost)
        self.room_version += 1
        if len(self._roots) > self._prune_at:
            self._roots = deque(dict.fromkeys(root for root in self._roots if self._catalog.state[root] == GHOST))
            self._prune_at = 2 * len(self._roots) + PRUNE_ROOTS
            self._restart_walk()

    def touch(self, rows: Iterable[int], now: int) -> None:
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

    # -- plans -------------------------------------------------------------------------------------------------------

    def take(self, now: int) -> int | None:
        """The next row that may go, assuming that those taken before go too; None: nothing is left.

        Every taken row must be given back by `restore` or `removed` before the step ends, and `end_plan` called.
        """
        row = self._take_orphan()
        if row is None:
            row = self._take_normal(now)
        if row is None and self._soft_count:
            row = self._take_soft(now)
        if row is None:
            return None
        self._taken_from[row] = self.where[row]
        self.where[row] = TAKEN
        parent = self._catalog.parent[row]
        if parent != NONE:
            self._taken_children[parent] = self._taken_children.get(parent, 0) + 1
            if self._catalog.state[parent] == RESIDENT:
                self.recheck(parent)
        return row

    def restore(self, row: int) -> None:
        """A taken row does not go after all: back to its place."""
        where = self._taken_from.pop(row)
        self.where[row] = where
        (self._soft if where == SOFT else self._normal).put_back(row)
        self._restart_walk()

    def leave_elsewhere(self, row: int) -> None:
        """A taken row does not go, and need not come up again while its copies lie where nothing may be placed."""
        if self._taken_from.pop(row) == SOFT:
            self._soft_count -= 1
            self._soft.remove(row, evicted=False)
        self.where[row] = ELSEWHERE
        self._elsewhere.append(row)

    def requeue_elsewhere(self, work: Slice) -> Generator[None, None, None]:
        """A node is back: rows that were left out come up again. In slices."""
        rows, self._elsewhere = self._elsewhere, []
        for row in rows:
            if self.where[row] == ELSEWHERE:
                self._requeue(row)
            if work.spend(1):
                yield

    def end_plan(self) -> None:
        self._taken_children.clear()

    def held_count(self) -> int:
        """Rows not absent; for checks."""
        return sum(where != ABSENT for where in self.where)

    def _take_normal(self, now: int) -> int | None:
        while (row := self._normal.take(now)) is not None:
            if self.reason_to_stay(row):
                self.where[row] = PARKED
            elif self._catalog.pin[row] == Pin.SOFT:
                self.where[row] = SOFT
                self._soft_count += 1
                self._soft.insert(self._candidate(row), self._normal.last_used(row))
            else:
                return row
        return None

    def _take_soft(self, now: int) -> int | None:
        while (row := self._soft.take(now)) is not None:
            if not self.reason_to_stay(row):
                return row
            # Parked in the first policy: `recheck` queues it there, and it comes back here when it is asked for.
            self._soft_count -= 1
            self._soft.remove(row, evicted=False)
            self.where[row] = PARKED
        return None

    def _take_orphan(self) -> int | None:
        """The deepest block that may go below the first ghost; walks on where the last call stopped."""
        catalog, path = self._catalog, self._path
        while self._roots:
            if not path:
                path.append(self._roots[0])
            top = path[-1]
            if len(path) == 1:
                if catalog.state[top] != GHOST or (child := self._way_down(top)) == NONE:
                    self._roots.popleft()
                    self._restart_walk()
                    continue
                path.append(child)
                continue
            if catalog.state[top] != RESIDENT or catalog.parent[top] != path[-2]:
                path.pop()
                continue
            if (child := self._way_down(top)) != NONE:
                path.append(child)
                continue
            path.pop()
            if self.where[top] == QUEUED and not self.reason_to_stay(top) and catalog.pin[top] != Pin.SOFT:
                self._normal.set_aside(top)
                return top
            self._stuck.add(top)
        return None

    def _restart_walk(self) -> None:
        self._path.clear()
        self._stuck.clear()

    def _way_down(self, row: int) -> int:
        child = self._catalog.first_child[row]
        while child != NONE and (child in self._stuck or self.where[child] == TAKEN):
            child = self._catalog.next_sibling[child]
        return child

    def _requeue(self, row: int) -> None:
        self.where[row] = QUEUED
        self._normal.put_back(row)
        self.room_version += 1

    def _candidate(self, row: int) -> Candidate:
        catalog = self._catalog
        return Candidate(
            row, catalog.scope[row], catalog.hash_of(row), catalog.size[row], catalog.parent[row], catalog.depth[row]
        )
