"""Which taken rows make the room: runs that would be there if their extents were free, and the cheapest place in them.

Sound as long as nothing is allocated and the rows stay taken; extents that become free meanwhile only make more room
than is seen here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain

from pykvpool.core.allocator import FreedOverlay
from pykvpool.core.catalog import NONE, Catalog
from pykvpool.core.jobs import Pace
from pykvpool.core.segments import Segment
from pykvpool.core.state import DurableState

#: Supposed extents are sorted in portions of this many, so that sorting fits into slices.
SORT_ROWS = 512
#: Units of a slice (see `jobs`) that one row costs in each pass over the chosen run.
PASS_UNITS = 2


@dataclass(frozen=True, slots=True)
class Room:
    """What is asked for: a run of `size_bytes` on each of `wanted` nodes, on `needed` of them at least."""

    size_bytes: int
    wanted: int
    needed: int
    #: Where it may be.
    segments: Sequence[Segment]
    #: `Segments.version` when it was asked for.
    segments_version: int

    def nodes(self) -> set[str]:
        """Where there is such a run now."""
        return {s.node for s in self.segments if s.space.largest_free_run >= s.space.rounded(self.size_bytes)}

    def is_stale(self, state: DurableState) -> bool:
        """Is the room there by now, or are the segments not those that it may be in?"""
        return self.segments_version != state.segments.version or len(self.nodes()) >= self.wanted


class Supposed:
    """The nodes that have the run already, and the supposed runs on the others."""

    def __init__(self, room: Room, catalog: Catalog) -> None:
        self._catalog = catalog
        self._room = room
        self._segments = {int(segment.id): segment for segment in room.segments}
        self._had = room.nodes()
        self._overlays: dict[int, FreedOverlay] = {}
        #: Nodes whose run exists only if rows go -> the segment that has it.
        self._gained: dict[str, int] = {}
        self._rows = set[int]()
        #: Supposed extents by segment: (offset, row).
        self._extents: dict[int, list[tuple[int, int]]] = {}

    @property
    def node_count(self) -> int:
        return len(self._had) + len(self._gained)

    def suppose_free(self, row: int) -> None:
        if row in self._rows:
            # It was given back and taken once more: that spoils the search, which will suppose everything anew.
            return
        self._rows.add(row)
        catalog, table = self._catalog, self._catalog.replicas
        for replica in table.of_object(catalog.replica[row]):
            number = table.segment[replica]
            segment = self._segments.get(number)
            if segment is None or segment.node in self._had:
                continue
            overlay = self._overlays.get(number)
            if overlay is None:
                overlay = self._overlays[number] = FreedOverlay(segment.space)
                self._extents[number] = []
            overlay.add(table.offset[replica], catalog.size[row])
            self._extents[number].append((table.offset[replica], row))
            if segment.node not in self._gained and overlay.longest >= segment.space.rounded(self._room.size_bytes):
                self._gained[segment.node] = number

    def needed_rows(self, taken: Sequence[int], pace: Pace) -> Generator[None, None, set[int]]:
        """Rows of the cheapest windows in the gained runs, and their taken descendants."""
        missing = max(self._room.wanted - len(self._had), 0)
        rows: set[int] = set()
        for number in list(self._gained.values())[:missing]:
            yield from self._add_window(number, rows, pace)
        if len(rows) == len(taken):
            return rows
        parent = self._catalog.parent
        for row in reversed(taken):
            if parent[row] != NONE and parent[row] in rows:
                rows.add(row)
            if pace.spend(1):
                yield
        return rows

    def _add_window(self, number: int, needed: set[int], pace: Pace) -> Generator[None, None, None]:
        """Of all places for the put in the segment's longest run, the one that costs the fewest bytes: its rows."""
        space, overlay, size = self._segments[number].space, self._overlays[number], self._catalog.size
        if len(self._extents[number]) == 1:
            # Without it there is no such run: it is in every place.
            needed.add(self._extents[number][0][1])
            return
        need = space.rounded(self._room.size_bytes)
        start, end = overlay.longest_start, overlay.longest_start + overlay.longest
        starts, ends, rows, costs = list[int](), list[int](), list[int](), [0]
        for offset, row in (yield from self._in_order(number, pace)):
            if start <= offset < end:
                starts.append(offset)
                ends.append(offset + space.rounded(size[row]))
                rows.append(row)
                costs.append(costs[-1] + ends[-1] - offset)
            if pace.spend(PASS_UNITS):
                yield
        best: tuple[int, int, int] | None = None
        for window in chain((start, end - need), ends, (offset - need for offset in starts)):
            if start <= window <= end - need:
                first, last = bisect_right(ends, window), bisect_left(starts, window + need)
                price = (costs[last] - costs[first], first, last)
                best = price if best is None else min(best, price)
            if pace.spend(PASS_UNITS):
                yield
        _, first, last = best or (0, 0, 0)
        for begin in range(first, last, SORT_ROWS):
            needed.update(rows[begin : min(begin + SORT_ROWS, last)])
            if pace.spend(SORT_ROWS // 8):
                yield

    def _in_order(self, number: int, pace: Pace) -> Generator[None, None, Iterable[tuple[int, int]]]:
        """The segment's supposed extents by offset."""
        extents = self._extents[number]
        portions = list[list[tuple[int, int]]]()
        for begin in range(0, len(extents), SORT_ROWS):
            portions.append(sorted(extents[begin : begin + SORT_ROWS]))
            if pace.spend(len(portions[-1])):
                yield
        return portions[0] if len(portions) == 1 else merge(*portions)
