"""Blocks whose parent is gone, found from the ghost that stands for it: deepest first, each at most once a walk.

Nobody can reach an orphan by a prefix, so orphans are offered before everything else. The walk goes down into the first
ghost and stops where it found one; the next call walks on from there. It remembers for every block on its way which
child is next, so that a block with thousands of children costs one look at each, whether they could go or not.

Knows chains; whether a block may go is the evictor's business.
"""

from __future__ import annotations

from collections import deque

from pykvpool.core.catalog import GHOST, NONE, RESIDENT, Catalog
from pykvpool.core.eviction.base import LOOK_AGAIN, LOOK_ROWS

#: The list of ghosts to visit is cleaned of those that are none any more when it has grown by about this many.
PRUNE_ROOTS = 1_024


class Orphans:
    """The walk over what lies below ghosts."""

    __slots__ = ("_catalog", "_next_child", "_path", "_prune_at", "_roots")

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        #: Ghosts whose subtrees go first.
        self._roots: deque[int] = deque()
        self._prune_at = PRUNE_ROOTS
        #: The way down into the first of them.
        self._path: list[int] = []
        #: Row on the way -> its child that is to be visited next, NONE after the last.
        self._next_child: dict[int, int] = {}

    def add(self, ghost: int) -> None:
        """A resident parent became this ghost, and left children."""
        self._roots.append(ghost)
        if len(self._roots) > self._prune_at:
            self._roots = deque(dict.fromkeys(root for root in self._roots if self._catalog.state[root] == GHOST))
            self._prune_at = 2 * len(self._roots) + PRUNE_ROOTS
            self.restart()

    def next(self) -> int | None:
        """The next block on the way up; None: all were visited; `LOOK_AGAIN`: nothing yet, ask again."""
        catalog, path = self._catalog, self._path
        for _ in range(LOOK_ROWS):
            if not self._roots:
                return None
            if not path:
                path.append(self._roots[0])
            # The root is asked at every step: a parent that came back since the last one took its children over.
            if catalog.state[path[0]] != GHOST:
                self._roots.popleft()
                self.restart()
                continue
            top = path[-1]
            gone = len(path) > 1 and (catalog.state[top] != RESIDENT or catalog.parent[top] != path[-2])
            child = NONE if gone else self._advance(top)
            if child != NONE:
                path.append(child)
                continue
            path.pop()
            self._next_child.pop(top, None)
            if not path:
                self._roots.popleft()
            elif not gone:
                return top
        return LOOK_AGAIN

    def restart(self) -> None:
        """Rows came back that the walk has passed: the next one begins at the top."""
        self._path.clear()
        self._next_child.clear()

    def _advance(self, row: int) -> int:
        """The child that is visited next. One that left since is no guide: then its siblings come again."""
        catalog = self._catalog
        child = self._next_child.get(row, catalog.first_child[row])
        if child != NONE and (catalog.state[child] != RESIDENT or catalog.parent[child] != row):
            child = catalog.first_child[row]
        if child != NONE:
            self._next_child[row] = catalog.next_sibling[child]
        return child
