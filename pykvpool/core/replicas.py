"""Which object has a copy in which segment, as rows of columns threaded by two lists.

A replica row is in the list of its object (walked to answer where the bytes are) and in the list of its segment
(walked, and only it, when the segment is lost). Lengths are not stored: a replica is as long as its object. Knows
nothing of allocators; whoever removes a replica frees its extent.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

NONE = -1


class ReplicaTable:
    """Replica rows; the head of an object's list is kept by the catalog and passed in."""

    __slots__ = ("_free", "_next_in_segment", "_prev_in_segment", "heads", "next_of_object", "object_row", "offset",
                 "segment")  # fmt: skip

    def __init__(self) -> None:
        #: Row of the object in the catalog; NONE in an unused row.
        self.object_row = array("i")
        self.segment = array("I")
        self.offset = array("Q")
        self.next_of_object = array("i")
        self._next_in_segment = array("i")
        self._prev_in_segment = array("i")
        #: Segment -> first replica row in it; a segment without replicas has no entry.
        self.heads: dict[int, int] = {}
        #: Unused rows, taken from the end.
        self._free = array("i")

    def add(self, object_row: int, segment: int, offset: int, next_of_object: int) -> int:
        """A new replica in front of `next_of_object` (the old head of the object's list, or NONE); returns its row."""
        head = self.heads.get(segment, NONE)
        if self._free:
            row = self._free.pop()
            self.object_row[row] = object_row
            self.segment[row] = segment
            self.offset[row] = offset
            self.next_of_object[row] = next_of_object
            self._next_in_segment[row] = head
            self._prev_in_segment[row] = NONE
        else:
            row = len(self.object_row)
            self.object_row.append(object_row)
            self.segment.append(segment)
            self.offset.append(offset)
            self.next_of_object.append(next_of_object)
            self._next_in_segment.append(head)
            self._prev_in_segment.append(NONE)
        if head != NONE:
            self._prev_in_segment[head] = row
        self.heads[segment] = row
        return row

    def remove(self, row: int, head: int) -> int:
        """Take `row` out of both lists; `head` begins its object's list. Returns the new head of that list."""
        after, before = self._next_in_segment[row], self._prev_in_segment[row]
        if after != NONE:
            self._prev_in_segment[after] = before
        if before != NONE:
            self._next_in_segment[before] = after
        elif after != NONE:
            self.heads[self.segment[row]] = after
        else:
            del self.heads[self.segment[row]]
        follower = self.next_of_object[row]
        self.object_row[row] = NONE
        self._free.append(row)
        if row == head:
            return follower
        previous = head
        while self.next_of_object[previous] != row:
            previous = self.next_of_object[previous]
        self.next_of_object[previous] = follower
        return head

    def of_object(self, head: int) -> Iterator[int]:
        """Replica rows of the list that begins at `head`, in the order of the put's grant."""
        while head != NONE:
            yield head
            head = self.next_of_object[head]

    def in_segment(self, segment: int) -> Iterator[int]:
        """Replica rows in a segment; for checks (do not change the table meanwhile)."""
        row = self.heads.get(segment, NONE)
        while row != NONE:
            yield row
            row = self._next_in_segment[row]
