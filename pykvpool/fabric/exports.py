"""The owner's side of the contract, for fabrics where the owner is asked: what is exported, and what is let in.

An `ExportTable` holds the mounts of one server by generation, the peers that are banned, and per mount the newest
`put_id` seen at each offset, so that a straggler of an older put cannot overwrite a newer one. No I/O here.
"""

from __future__ import annotations

from pykvpool.errors import InvalidArgument, PoolError, SegmentGone, StalePut, invariant
from pykvpool.fabric.base import Exported, Peer
from pykvpool.model.ids import Generation, PutId

#: Offsets whose newest put_id is remembered per mount (about 100 bytes each). The longest unwritten is forgotten first.
MAX_TRACKED_OFFSETS = 1_048_576
#: Banned (name, incarnation) pairs remembered; the oldest go first. A ban matters while its session may still connect,
#: which is seconds; this many sessions do not end in that time.
MAX_BANS = 65_536


class PutGuard:
    """Admits a write unless a newer put was seen at the same offset.

    Fencing is what frees an extent; this catches what a fence that never came would have caught.
    """

    def __init__(self, limit: int = MAX_TRACKED_OFFSETS) -> None:
        #: offset -> newest put_id admitted there; in order of the last admission.
        self._newest: dict[int, PutId] = {}
        self._limit = limit
        #: Newest put_id forgotten: older ones are refused everywhere, as they may be stale at a forgotten offset.
        self._floor = PutId(0)

    def admit(self, offset: int, put_id: PutId) -> bool:
        newest = self._newest.pop(offset, self._floor)
        fresh = put_id >= newest
        self._newest[offset] = put_id if fresh else newest
        if len(self._newest) > self._limit:
            oldest = next(iter(self._newest))
            self._floor = max(self._floor, self._newest.pop(oldest))
        return fresh


class Export:
    """One mount on offer."""

    __slots__ = ("guard", "memory")

    def __init__(self, memory: Exported) -> None:
        self.memory = memory
        self.guard = PutGuard()

    def refuse_range(self, offset: int, length: int) -> PoolError | None:
        """Why these bytes cannot be touched, None if they can."""
        if offset < 0 or length < 0 or offset + length > self.memory.size_bytes:
            return InvalidArgument(
                f"{length} bytes at offset {offset} are outside the segment of {self.memory.size_bytes} bytes",
                offset=offset,
                length=length,
            )
        return None

    def refuse_write(self, peer: Peer, offset: int, length: int, put_id: PutId) -> PoolError | None:
        """Why this write is not let in; None: it is, and its put_id is the newest at its offset from now on."""
        if not peer.writable:
            return InvalidArgument("a reader may not write")
        refusal = self.refuse_range(offset, length)
        if refusal is None and not self.guard.admit(offset, put_id):
            refusal = StalePut(f"put {put_id} is older than what was last written at offset {offset}", put_id=put_id)
        return refusal


class ExportTable:
    """Mounts by generation, and who is banned."""

    def __init__(self) -> None:
        self._exports: dict[Generation, Export] = {}
        #: In order of banning; values mean nothing.
        self._banned: dict[tuple[str, int], None] = {}

    def add(self, memory: Exported) -> Export:
        invariant(memory.generation not in self._exports, "a generation is exported once per fabric")
        export = self._exports[memory.generation] = Export(memory)
        return export

    def find(self, generation: Generation) -> Export:
        """Raises `SegmentGone` where that generation is not (any more) on offer."""
        export = self._exports.get(generation)
        if export is None:
            raise gone(generation)
        return export

    def remove(self, generation: Generation) -> Export | None:
        return self._exports.pop(generation, None)

    def generations(self) -> list[Generation]:
        return list(self._exports)

    def ban(self, name: str, incarnation: int) -> None:
        self._banned[name, incarnation] = None
        if len(self._banned) > MAX_BANS:
            del self._banned[next(iter(self._banned))]

    def is_banned(self, peer: Peer) -> bool:
        return (peer.name, peer.incarnation) in self._banned


def gone(generation: Generation) -> SegmentGone:
    """The error for a generation that is over or never was."""
    return SegmentGone(f"generation {generation:#x} of the segment is not mounted here", generation=generation)
