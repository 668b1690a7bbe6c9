"""Objects that were committed unsummed: their owner is asked to hash its own copy, and asked again when it comes back.

No pin is needed: the answer names the put_id, which is never reused. If the object went meanwhile the answer is void,
and while it is there its bytes do not change.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from pykvpool.core.catalog import NONE, RESIDENT
from pykvpool.core.context import Context
from pykvpool.core.jobs import Slice
from pykvpool.model.facts import ChecksumSet
from pykvpool.model.ids import PutId, SegmentId, SessionId
from pykvpool.model.instructions import HashExtents
from pykvpool.model.objects import Extent

#: Most objects in one instruction: it stays far below a frame, and the owner's answers come in useful portions.
MAX_HASH_BATCH = 512
#: Units of a slice (see `jobs`) that asking for one checksum, or taking it, costs.
HASH_UNITS = 3


class HashRequests:
    """Which objects of which segment still need a checksum."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._standing: dict[SegmentId, dict[PutId, None]] = {}

    def ask(self, puts: Iterable[PutId], work: Slice) -> Generator[None, None, None]:
        """These were just committed unsummed: ask the owner of the first copy of each. In slices."""
        by_segment: dict[SegmentId, list[PutId]] = {}
        catalog = self._context.state.catalog
        for put_id in puts:
            row = catalog.by_put.get(put_id)
            if row != NONE and catalog.state[row] == RESIDENT:
                segment = SegmentId(catalog.replicas.segment[catalog.replica[row]])
                by_segment.setdefault(segment, []).append(put_id)
            if work.spend(1):
                yield
        for segment, new in by_segment.items():
            if segment in self._context.state.segments.by_id:
                self._standing.setdefault(segment, {}).update(dict.fromkeys(new))
                yield from self._send(segment, new, work)

    def answered(self, segment: SegmentId, put_id: PutId, checksum: int) -> None:
        """The owner's checksum of its copy; void if the object is gone, or summed already."""
        self._standing.get(segment, {}).pop(put_id, None)
        if self._extent(segment, put_id) is not None:
            self._context.emit(ChecksumSet(put_id, checksum))

    def resume(self, node: SessionId, work: Slice) -> Generator[None, None, None]:
        """The node is back: ask again for all that it owes. In slices."""
        for segment in self._context.state.segments.of_session(node):
            yield from self._send(segment.id, list(self._standing.get(segment.id, ())), work)

    def segment_gone(self, segment: SegmentId) -> None:
        self._standing.pop(segment, None)

    def _send(self, segment: SegmentId, puts: list[PutId], work: Slice) -> Generator[None, None, None]:
        for begin in range(0, len(puts), MAX_HASH_BATCH):
            if work.is_over:
                yield
            batch = puts[begin : begin + MAX_HASH_BATCH]
            self._send_batch(segment, batch)
            work.spend(HASH_UNITS * len(batch))

    def _send_batch(self, segment: SegmentId, puts: list[PutId]) -> None:
        found: list[tuple[PutId, Extent]] = []
        for put_id in puts:
            extent = self._extent(segment, put_id)
            if extent is None:
                self._standing.get(segment, {}).pop(put_id, None)
            else:
                found.append((put_id, extent))
        node = self._context.segment_session(segment)
        if node is None or not found:
            return
        self._context.instruct(
            node, HashExtents(segment, tuple(put_id for put_id, _ in found), tuple(extent for _, extent in found))
        )

    def _extent(self, segment: SegmentId, put_id: PutId) -> Extent | None:
        """Where the unsummed resident object lies in the segment."""
        catalog = self._context.state.catalog
        row = catalog.by_put.get(put_id)
        if row == NONE or catalog.state[row] != RESIDENT or catalog.summed[row]:
            return None
        return next((extent for extent in catalog.extents(row) if extent.segment == segment), None)
