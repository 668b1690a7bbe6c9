"""Where in one segment the next object goes: best fit over coalesced free runs.

Only *free* runs are stored, so a full segment costs nothing here. They are found two ways: by offset (neighbours, to
coalesce and to notice a double free) and by exact length (a sorted list of the distinct lengths, each with a heap of
offsets). KV blocks come in few sizes, so there are few lengths: with n blocks free no more than about sqrt(2n) distinct
sums of them can exist at once. The choice, shortest run that fits and lowest offset among those, depends on the set
of free runs alone and never on history: a standby that only replays facts would choose the same.

Knows nothing of objects, writers or readers. Lengths are rounded up to the alignment, so callers pass the object's own
size to `allocate` and `free` alike.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush

from pykvpool.core.sorted_offsets import SortedOffsets
from pykvpool.errors import invariant

#: A heap of offsets is cleaned when it holds more than twice its live entries and this many more.
STALE_OFFSETS = 64


class Allocator:
    """Extents of one segment. Offsets and lengths in bytes."""

    __slots__ = (
        "_by_length",
        "_length_at",
        "_lengths",
        "_live",
        "_starts",
        "alignment_bytes",
        "capacity",
        "free_bytes",
    )

    def __init__(self, size_bytes: int, alignment_bytes: int) -> None:
        invariant(alignment_bytes > 0, "the alignment is positive")
        self.alignment_bytes = alignment_bytes
        #: Usable bytes: the size rounded down to the alignment. free_bytes + taken bytes == capacity, always.
        self.capacity = size_bytes // alignment_bytes * alignment_bytes
        self.free_bytes = 0
        #: Offset of a free run -> its length. No two runs touch.
        self._length_at: dict[int, int] = {}
        #: The same offsets, in order.
        self._starts = SortedOffsets()
        #: Distinct lengths of free runs, ascending.
        self._lengths: list[int] = []
        #: Length -> heap of offsets; may hold stale ones (no run of that length there any more).
        self._by_length: dict[int, list[int]] = {}
        #: Length -> number of free runs of exactly that length.
        self._live: dict[int, int] = {}
        if self.capacity:
            self._add(0, self.capacity)
            self.free_bytes = self.capacity

    def rounded(self, length: int) -> int:
        """Bytes that an extent of `length` takes."""
        return -(-length // self.alignment_bytes) * self.alignment_bytes

    @property
    def largest_free_run(self) -> int:
        return self._lengths[-1] if self._lengths else 0

    def find(self, length: int) -> int | None:
        """Where `allocate(length)` would put it, without taking it; None where no run is long enough."""
        need = self.rounded(length)
        i = bisect_left(self._lengths, need)
        if i == len(self._lengths):
            return None
        fit = self._lengths[i]
        heap = self._by_length[fit]
        while self._length_at.get(heap[0]) != fit:
            heappop(heap)
        return heap[0]

    def allocate(self, length: int) -> int | None:
        """Take `length` bytes; returns their offset, or None where no free run is long enough."""
        offset = self.find(length)
        if offset is not None:
            self.reserve(offset, length)
        return offset

    def reserve(self, offset: int, length: int) -> None:
        """Take exactly [offset, offset + length): what a fact says is so. Taken bytes break an invariant."""
        need = self.rounded(length)
        invariant(need > 0 and offset % self.alignment_bytes == 0, "an extent is aligned and not empty")
        start = self._starts.at_or_before(offset)
        run = self._length_at.get(start, 0)
        invariant(start >= 0 and offset + need <= start + run, "a reserved extent was free")
        self._drop(start, run)
        if offset > start:
            self._add(start, offset - start)
        if offset + need < start + run:
            self._add(offset + need, start + run - offset - need)
        self.free_bytes -= need

    def free(self, offset: int, length: int) -> None:
        """Give back what was allocated there; overlapping a free run (a double free) breaks an invariant."""
        need = self.rounded(length)
        invariant(
            need > 0 and offset % self.alignment_bytes == 0 and 0 <= offset <= self.capacity - need,
            "a freed extent lies in its segment",
        )
        start, end = offset, offset + need
        before, after = self._starts.at_or_before(offset), self._starts.after(offset)
        # Both are looked at before anything changes: what cannot be true must leave the books as they were.
        before_end = before + self._length_at[before] if before >= 0 else 0
        invariant(before_end <= offset and (after < 0 or end <= after), "a freed extent was taken")
        if before >= 0 and before_end == offset:
            self._drop(before, before_end - before)
            start = before
        if end == after:
            run = self._length_at[after]
            self._drop(after, run)
            end = after + run
        self._add(start, end - start)
        self.free_bytes += need

    def run_ending_at(self, offset: int) -> int | None:
        """Start of the free run that ends exactly at `offset`."""
        start = self._starts.at_or_before(offset - 1)
        return start if start >= 0 and start + self._length_at[start] == offset else None

    def run_starting_at(self, offset: int) -> int | None:
        """End of the free run that starts exactly at `offset`."""
        length = self._length_at.get(offset)
        return None if length is None else offset + length

    def runs(self) -> list[tuple[int, int]]:
        """(offset, length) of every free run by offset; for checks."""
        return [(start, self._length_at[start]) for start in self._starts]

    def _add(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._starts.add(start)
        live = self._live.get(length, 0)
        self._live[length] = live + 1
        if not live:
            insort(self._lengths, length)
            self._by_length[length] = [start]
            return
        heap = self._by_length[length]
        heappush(heap, start)
        if len(heap) > 2 * live + STALE_OFFSETS:
            heap[:] = {offset for offset in heap if self._length_at.get(offset) == length}
            heapify(heap)

    def _drop(self, start: int, length: int) -> None:
        del self._length_at[start]
        self._starts.remove(start)
        live = self._live[length] - 1
        if live:
            self._live[length] = live
        else:
            del self._live[length]
            del self._by_length[length]
            del self._lengths[bisect_left(self._lengths, length)]


class FreedOverlay:
    """ "Would there be a run of so many bytes if these extents were free as well?", without freeing them.

    Sound only while the allocator below does not change. Extents are added one by one; runs only grow.
    """

    __slots__ = ("_base", "_end_of", "_start_of", "longest", "longest_start")

    def __init__(self, base: Allocator) -> None:
        self._base = base
        #: Start -> end and end -> start of the runs that the added extents made (free runs they touch included).
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        #: Longest run, and where it starts (-1: it is one of the allocator's own).
        self.longest = base.largest_free_run
        self.longest_start = -1

    def add(self, offset: int, length: int) -> None:
        """Suppose that the taken extent at `offset` were free."""
        start, end = offset, offset + self._base.rounded(length)
        if start in self._start_of:
            left = self._start_of.pop(start)
            del self._end_of[left]
            start = left
        else:
            base_left = self._base.run_ending_at(start)
            start = start if base_left is None else base_left
        if end in self._end_of:
            right = self._end_of.pop(end)
            del self._start_of[right]
            end = right
        else:
            base_right = self._base.run_starting_at(end)
            end = end if base_right is None else base_right
        self._end_of[start] = end
        self._start_of[end] = start
        if end - start > self.longest:
            self.longest = end - start
            self.longest_start = start
