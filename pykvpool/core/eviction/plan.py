"""Making room, exactly: enough, in one piece, on enough nodes, at the cost of as few blocks as the order allows; or
nothing at all.

A put of S bytes on r nodes needs a run of S contiguous bytes on each of r distinct nodes. The planner takes rows in the
evictor's order and supposes their extents free until the runs exist; then it gives back every row that no run needs
(a row is needed if it lies in a chosen run, or if a needed row is its ancestor: a parent never goes before its
children). If the rows run out first, all are given back and nothing has changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pykvpool.core.allocator import FreedOverlay
from pykvpool.core.catalog import NONE, Catalog
from pykvpool.core.eviction.evictor import Evictor
from pykvpool.core.segments import Segment

#: Once the put could start, this many more rows are examined to reach all the nodes that were asked for (or the
#: preferred one): a wish must not cost a walk over the whole pool.
WISH_SCAN_ROWS = 128


@dataclass(frozen=True, slots=True)
class Room:
    """What is asked for: a run of `size_bytes` on each of `wanted` nodes, on `needed` of them at least."""

    size_bytes: int
    wanted: int
    needed: int
    #: Where it may be.
    segments: Sequence[Segment]
    #: Ids of all segments in which something may be placed at all.
    writable: frozenset[int]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to evict."""

    #: In order, children before parents; None: all evictable rows together would not do.
    rows: list[int] | None
    #: How many rows were looked at.
    examined: int


def plan_eviction(room: Room, catalog: Catalog, evictor: Evictor, now: int) -> Plan:
    """Choose the rows to evict so that the room is there.

    The caller evicts them before the step ends. Rows that were examined and stay are in their places again, but for
    those that would make no room for anybody: they are left elsewhere until their node is back.
    """
    search = _Search(room, catalog)
    taken: list[int] = []
    scan_limit = WISH_SCAN_ROWS
    while search.node_count < room.wanted:
        if search.node_count >= room.needed and len(taken) >= scan_limit:
            break
        row = evictor.take(now)
        if row is None:
            break
        before = search.node_count
        taken.append(row)
        search.suppose_free(row)
        if before < room.needed <= search.node_count:
            scan_limit = len(taken) + WISH_SCAN_ROWS
    needed = search.needed_rows(taken) if search.node_count >= room.needed else set()
    for row in reversed(taken):
        if row in needed:
            continue
        if _is_elsewhere(row, room, catalog):
            evictor.leave_elsewhere(row)
        else:
            evictor.restore(row)
    evictor.end_plan()
    if search.node_count < room.needed:
        return Plan(None, len(taken))
    return Plan([row for row in taken if row in needed], len(taken))


def _is_elsewhere(row: int, room: Room, catalog: Catalog) -> bool:
    """Would evicting the row make no room for anybody?"""
    table = catalog.replicas
    return not any(table.segment[replica] in room.writable for replica in table.of_object(catalog.replica[row]))


class _Search:
    """The nodes that have the run already, and the supposed runs on the others."""

    def __init__(self, room: Room, catalog: Catalog) -> None:
        self._catalog = catalog
        self._room = room
        self._segments = {int(segment.id): segment for segment in room.segments}
        self._had = {segment.node for segment in room.segments if self._fits(segment)}
        self._overlays: dict[int, FreedOverlay] = {}
        #: Nodes whose run exists only if rows go -> the segment that has it.
        self._gained: dict[str, int] = {}
        #: Supposed extents by segment: (offset, row).
        self._supposed: dict[int, list[tuple[int, int]]] = {}

    @property
    def node_count(self) -> int:
        return len(self._had) + len(self._gained)

    def suppose_free(self, row: int) -> None:
        catalog, table = self._catalog, self._catalog.replicas
        for replica in table.of_object(catalog.replica[row]):
            number = table.segment[replica]
            segment = self._segments.get(number)
            if segment is None or segment.node in self._had:
                continue
            overlay = self._overlays.get(number)
            if overlay is None:
                overlay = self._overlays[number] = FreedOverlay(segment.space)
                self._supposed[number] = []
            overlay.add(table.offset[replica], catalog.size[row])
            self._supposed[number].append((table.offset[replica], row))
            if segment.node not in self._gained and overlay.longest >= segment.space.rounded(self._room.size_bytes):
                self._gained[segment.node] = number

    def needed_rows(self, taken: Sequence[int]) -> set[int]:
        """Rows of the cheapest windows in the gained runs, and their taken descendants."""
        missing = max(self._room.wanted - len(self._had), 0)
        rows: set[int] = set()
        for number in list(self._gained.values())[:missing]:
            rows |= self._window_rows(number)
        parent = self._catalog.parent
        for row in reversed(taken):
            if parent[row] != NONE and parent[row] in rows:
                rows.add(row)
        return rows

    def _fits(self, segment: Segment) -> bool:
        return segment.space.largest_free_run >= segment.space.rounded(self._room.size_bytes)

    def _window_rows(self, number: int) -> set[int]:
        """Of all places for the put in the segment's longest run, the one that costs the fewest bytes."""
        space, overlay = self._segments[number].space, self._overlays[number]
        need = space.rounded(self._room.size_bytes)
        start, end = overlay.longest_start, overlay.longest_start + overlay.longest
        inside = sorted((offset, row) for offset, row in self._supposed[number] if start <= offset < end)
        starts = [offset for offset, _ in inside]
        ends = [offset + space.rounded(self._catalog.size[row]) for offset, row in inside]
        cost = [0, *accumulate(last - first for first, last in zip(starts, ends, strict=True))]
        best: tuple[int, int, int] | None = None
        for window in {start, end - need, *ends, *(offset - need for offset in starts)}:
            if start <= window <= end - need:
                first, last = bisect_right(ends, window), bisect_left(starts, window + need)
                price = cost[last] - cost[first]
                best = min(best or (price, first, last), (price, first, last))
        return set() if best is None else {row for _, row in inside[best[1] : best[2]]}
