"""From a put_id to the row of the object that it became, at a few bytes per object.

put_ids rise by one, and what lives in a pool was mostly put about the same time, so small pages addressed by the upper
bits of the id beat a dict (some 75 bytes per entry) by an order of magnitude. A page goes with its last member.
"""

from __future__ import annotations

from array import array

from pykvpool.errors import invariant

#: 256 ids a page: a lone old object keeps 1 KiB, and the garbage collector (it tracks arrays) sees a page, not objects.
PAGE_BITS = 8
PAGE_IDS = 1 << PAGE_BITS
_EMPTY = array("i", [-1]) * PAGE_IDS + array("i", [0])


class PutIndex:
    """put_id -> row."""

    __slots__ = ("_pages",)

    def __init__(self) -> None:
        #: Page number -> a row for each id of the page (-1: none), then the number of members.
        self._pages: dict[int, array[int]] = {}

    def add(self, put_id: int, row: int) -> None:
        page = self._pages.get(put_id >> PAGE_BITS)
        if page is None:
            page = self._pages[put_id >> PAGE_BITS] = _EMPTY[:]
        slot = put_id & (PAGE_IDS - 1)
        invariant(page[slot] == -1, "a put_id names one object")
        page[slot] = row
        page[PAGE_IDS] += 1

    def get(self, put_id: int) -> int:
        """The row, or -1."""
        page = self._pages.get(put_id >> PAGE_BITS)
        return -1 if page is None else page[put_id & (PAGE_IDS - 1)]

    def remove(self, put_id: int) -> None:
        page = self._pages[put_id >> PAGE_BITS]
        slot = put_id & (PAGE_IDS - 1)
        invariant(page[slot] != -1, "a removed put_id names an object")
        page[slot] = -1
        page[PAGE_IDS] -= 1
        if not page[PAGE_IDS]:
            del self._pages[put_id >> PAGE_BITS]
