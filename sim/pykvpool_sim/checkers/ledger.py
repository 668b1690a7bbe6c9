"""What facts say: who owns which bytes of which segment, and which keys are readable. And P3, which is about that.

Written from the meaning of the facts (`pykvpool.model.facts`), with dicts and loops where the core has columns and
indexes, and shared with it in nothing. A fact that cannot be true is a broken P3: two owners of one byte, bytes that
come free twice, an object that was never opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pykvpool.model import facts
from pykvpool.model.ids import Generation, NodeName, PutId, ScopeId, SegmentId, SessionId
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Extent, Pin
from pykvpool_sim.checkers.verdicts import Verdicts

Key = tuple[ScopeId, bytes]


class Holding(Enum):
    """Why bytes are not free."""

    #: Their writer is at work.
    OPEN = "open"
    COMMITTED = "committed"
    #: The key is gone, readers are not.
    LINGERING = "lingering"
    #: Something may still land.
    QUARANTINED = "quarantined"


@dataclass(slots=True)
class Taken:
    """A run of bytes that is somebody's."""

    put_id: PutId
    offset: int
    #: With the padding up to the next multiple of the alignment.
    length: int
    holding: Holding

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(slots=True)
class SegmentEntry:
    fact: facts.SegmentMounted
    going: str | None = None
    #: By offset.
    taken: dict[int, Taken] = field(default_factory=dict)

    def at(self, offset: int) -> Taken | None:
        """Whose byte that is."""
        return next((taken for taken in self.taken.values() if taken.offset <= offset < taken.end), None)


@dataclass(slots=True)
class PutEntry:
    """One put, from its opening on; it stays in the ledger for ever."""

    fact: facts.PutOpened
    #: Extents that are held now, and how.
    holdings: dict[Extent, Holding]
    checksum: int | None = None
    #: It became an object.
    committed: bool = False
    #: It is neither open nor an object any more.
    over: bool = False

    @property
    def key(self) -> Key:
        return (self.fact.scope, self.fact.hash)

    def extents(self, *holdings: Holding) -> tuple[Extent, ...]:
        return tuple(extent for extent, holding in self.holdings.items() if holding in holdings)


@dataclass(slots=True)
class SessionEntry:
    fact: facts.SessionOpened
    ended: str | None = None


class Ledger:
    """One life of the master."""

    def __init__(self, alignment_bytes: int, verdicts: Verdicts) -> None:
        self._alignment = alignment_bytes
        self._verdicts = verdicts
        self.scopes: dict[ScopeId, Scope] = {}
        self.sessions: dict[SessionId, SessionEntry] = {}
        self.segments: dict[SegmentId, SegmentEntry] = {}
        self.by_generation: dict[Generation, SegmentEntry] = {}
        #: The latest mount of each node.
        self._newest: dict[NodeName, Generation] = {}
        self.puts: dict[PutId, PutEntry] = {}
        #: Readable keys.
        self.objects: dict[Key, PutId] = {}
        self.pins: dict[Key, Pin] = {}
        self._last_put = PutId(0)
        self._apply: dict[type, Callable[[Any], None]] = {
            facts.ScopeInterned: self._scope_interned,
            facts.SessionOpened: self._session_opened,
            facts.SessionEnded: self._session_ended,
            facts.SegmentMounted: self._segment_mounted,
            facts.SegmentGoing: self._segment_going,
            facts.SegmentRemoved: self._segment_removed,
            facts.PutOpened: self._put_opened,
            facts.ObjectCommitted: self._object_committed,
            facts.PutClosed: self._put_closed,
            facts.QuarantineEnded: self._quarantine_ended,
            facts.ObjectRemoved: self._object_removed,
            facts.ExtentsFreed: self._extents_freed,
            facts.ReplicaLost: self._replica_lost,
            facts.PinChanged: self._pin_changed,
            facts.ChecksumSet: self._checksum_set,
        }

    def apply(self, fact: facts.Fact) -> None:
        self._apply[type(fact)](fact)

    def rounded(self, length: int) -> int:
        return -(-length // self._alignment) * self._alignment

    def readable(self, key: Key) -> PutEntry | None:
        """The object under a key if a copy of it lies in a segment that is there to stay."""
        put_id = self.objects.get(key)
        if put_id is None:
            return None
        entry = self.puts[put_id]
        copies = entry.extents(Holding.COMMITTED)
        return entry if any(self.is_alive(extent.segment) for extent in copies) else None

    def is_alive(self, segment: SegmentId) -> bool:
        entry = self.segments.get(segment)
        return entry is not None and entry.going is None

    def newest_mount(self, generation: Generation) -> Generation | None:
        """The latest mount of the node whose mount this was; None: nobody mounted it in this life of the master."""
        entry = self.by_generation.get(generation)
        return None if entry is None else self._newest[entry.fact.node]

    def children(self, key: Key) -> list[PutEntry]:
        """Readable objects whose parent this is."""
        scope, hash_ = key
        entries = (self.puts[put_id] for put_id in self.objects.values())
        return [entry for entry in entries if entry.fact.scope == scope and entry.fact.parent == hash_]

    # -- facts ---------------------------------------------------------------------------------------------------

    def _scope_interned(self, fact: facts.ScopeInterned) -> None:
        self.scopes[fact.scope_id] = fact.scope

    def _session_opened(self, fact: facts.SessionOpened) -> None:
        self.sessions[fact.session] = SessionEntry(fact)

    def _session_ended(self, fact: facts.SessionEnded) -> None:
        self.sessions[fact.session].ended = fact.reason

    def _segment_mounted(self, fact: facts.SegmentMounted) -> None:
        if fact.segment in self.segments or fact.generation in self.by_generation:
            self._verdicts.add("P5", f"{fact} names a mount that there was before")
        self.segments[fact.segment] = self.by_generation[fact.generation] = SegmentEntry(fact)
        self._newest[fact.node] = fact.generation

    def _segment_going(self, fact: facts.SegmentGoing) -> None:
        self.segments[fact.segment].going = fact.reason

    def _segment_removed(self, fact: facts.SegmentRemoved) -> None:
        segment = self.segments.pop(fact.segment)
        for taken in segment.taken.values():
            if taken.holding in (Holding.COMMITTED, Holding.LINGERING):
                self._wrong(f"{fact} while put {taken.put_id} is {taken.holding.value} there", taken.put_id)
            entry = self.puts[taken.put_id]
            entry.holdings = {extent: how for extent, how in entry.holdings.items() if extent.segment != fact.segment}

    def _put_opened(self, fact: facts.PutOpened) -> None:
        if fact.put_id <= self._last_put:
            self._wrong(f"{fact}: put_ids rise, the last was {self._last_put}", fact.put_id)
        self._last_put = max(self._last_put, fact.put_id)
        self.puts[fact.put_id] = PutEntry(fact, dict.fromkeys(fact.extents, Holding.OPEN))
        for extent in fact.extents:
            self._take(fact, extent)

    def _take(self, fact: facts.PutOpened, extent: Extent) -> None:
        segment = self.segments.get(extent.segment)
        if segment is None or segment.going is not None:
            self._wrong(f"{fact}: segment {extent.segment} is not there to stay", fact.put_id)
            return
        taken = Taken(fact.put_id, extent.offset, self.rounded(extent.length), Holding.OPEN)
        for other in segment.taken.values():
            if other.offset < taken.end and taken.offset < other.end:
                self._wrong(
                    f"put {fact.put_id} was given {extent} while put {other.put_id} has [{other.offset}, {other.end}) "
                    f"({other.holding.value})",
                    fact.put_id,
                )
        if extent.offset % self._alignment or taken.end > segment.fact.size_bytes or extent.length != fact.size_bytes:
            self._wrong(f"{fact}: {extent} does not fit its segment or its object", fact.put_id)
        segment.taken[extent.offset] = taken

    def _object_committed(self, fact: facts.ObjectCommitted) -> None:
        entry = self._open(fact.put_id, fact)
        if entry is None:
            return
        if not fact.landed or not {*fact.landed, *fact.quarantined} <= entry.holdings.keys():
            self._wrong(f"{fact}: it landed on nothing, or on what it was not given", fact.put_id)
        if entry.key in self.objects:
            self._wrong(f"{fact}: its key has an object, put {self.objects[entry.key]}", fact.put_id)
        entry.committed, entry.checksum = True, fact.checksum
        self.objects[entry.key] = fact.put_id
        self.pins[entry.key] = entry.fact.pin
        self._settle(entry, dict.fromkeys(fact.landed, Holding.COMMITTED), fact.quarantined)

    def _put_closed(self, fact: facts.PutClosed) -> None:
        entry = self._open(fact.put_id, fact)
        if entry is not None:
            entry.over = True
            self._settle(entry, {}, fact.quarantined)

    def _settle(self, entry: PutEntry, kept: dict[Extent, Holding], quarantined: tuple[Extent, ...]) -> None:
        for extent in tuple(entry.holdings):
            holding = kept.get(extent, Holding.QUARANTINED if extent in quarantined else None)
            if holding is None:
                self._free(entry, extent)
            else:
                self._hold(entry, extent, holding)

    def _quarantine_ended(self, fact: facts.QuarantineEnded) -> None:
        entry = self.puts[fact.put_id]
        extents = [one for one in entry.extents(Holding.QUARANTINED) if one.segment == fact.segment]
        if len(extents) != 1:
            self._wrong(f"{fact}: {len(extents)} extents are quarantined there", fact.put_id)
        for extent in extents:
            self._free(entry, extent)

    def _object_removed(self, fact: facts.ObjectRemoved) -> None:
        key, entry = (fact.scope, fact.hash), self.puts[fact.put_id]
        if self.objects.get(key) != fact.put_id:
            self._wrong(f"{fact}: the key's object is {self.objects.get(key)}", fact.put_id)
            return
        del self.objects[key]
        self.pins.pop(key, None)
        entry.over = True
        for extent in entry.extents(Holding.COMMITTED):
            if fact.lingering:
                self._hold(entry, extent, Holding.LINGERING)
            else:
                self._free(entry, extent)

    def _extents_freed(self, fact: facts.ExtentsFreed) -> None:
        entry = self.puts[fact.put_id]
        for extent in entry.extents(Holding.LINGERING):
            self._free(entry, extent)

    def _replica_lost(self, fact: facts.ReplicaLost) -> None:
        entry = self.puts[fact.put_id]
        lost = [one for one in entry.extents(Holding.COMMITTED, Holding.LINGERING) if one.segment == fact.segment]
        if not lost:
            self._wrong(f"{fact}: it has no replica there", fact.put_id)
        for extent in lost:
            self._free(entry, extent)

    def _pin_changed(self, fact: facts.PinChanged) -> None:
        self.pins[fact.scope, fact.hash] = fact.pin

    def _checksum_set(self, fact: facts.ChecksumSet) -> None:
        self.puts[fact.put_id].checksum = fact.checksum

    # -- bytes ---------------------------------------------------------------------------------------------------

    def _open(self, put_id: PutId, fact: facts.Fact) -> PutEntry | None:
        entry = self.puts.get(put_id)
        if entry is None or entry.over or entry.committed:
            self._wrong(f"{fact}: that put is not open", put_id)
            return None
        return entry

    def _hold(self, entry: PutEntry, extent: Extent, holding: Holding) -> None:
        entry.holdings[extent] = holding
        segment = self.segments.get(extent.segment)
        if segment is not None and extent.offset in segment.taken:
            segment.taken[extent.offset].holding = holding

    def _free(self, entry: PutEntry, extent: Extent) -> None:
        """Extents in a segment that is gone went with it."""
        del entry.holdings[extent]
        segment = self.segments.get(extent.segment)
        if segment is None:
            return
        taken = segment.taken.pop(extent.offset, None)
        if taken is None or taken.put_id != entry.fact.put_id:
            self._wrong(f"{extent} of put {entry.fact.put_id} came free and was not its", entry.fact.put_id)

    def _wrong(self, text: str, put_id: PutId) -> None:
        entry = self.puts.get(put_id)
        self._verdicts.add("P3", text, key=entry.fact.hash if entry else None, put_id=put_id)
