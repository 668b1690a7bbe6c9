"""What may be decided when: P2 (bytes come free on evidence, and not under a reader), P6 (eviction), P8 (loss).

Each rule is asked before its fact is entered into the ledger. `Rules.stepped` judges a step as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from pykvpool.core.config import CoreConfig
from pykvpool.model import facts
from pykvpool.model.commands import Fenced, Goodbye, PutEnd, PutForget, PutRevoke, Unmount
from pykvpool.model.events import Disconnected, Event, Hello, Request
from pykvpool.model.ids import PutId, SegmentId, SessionId
from pykvpool.model.instructions import Fence, Instruction
from pykvpool.model.objects import Pin
from pykvpool_sim.checkers.leases import LeaseBook
from pykvpool_sim.checkers.ledger import Holding, Ledger
from pykvpool_sim.checkers.verdicts import Verdicts


class Rules:
    """One life of the master."""

    def __init__(self, config: CoreConfig, ledger: Ledger, book: LeaseBook, verdicts: Verdicts) -> None:
        self._config = config
        self._ledger = ledger
        self._book = book
        self._verdicts = verdicts
        #: Fence number -> what its answer is evidence for.
        self._covered: dict[int, tuple[SessionId, SegmentId, tuple[PutId, ...]]] = {}
        #: Nothing of this put lands there any more, by the owner's word.
        self._fenced: set[tuple[PutId, SegmentId]] = set()
        #: The writer said that it has drained: put -> mask of replicas that it excepts.
        self._drained: dict[PutId, int] = {}
        #: Their own writers asked for them to be committed.
        self._ended: set[PutId] = set()
        self._said_goodbye: set[SessionId] = set()
        #: Puts whose writers were told of them.
        self.told: set[PutId] = set()
        self._unmounted: set[SegmentId] = set()
        #: The first of the latest evictions, and when, while nobody got their room yet.
        self._evicted: tuple[facts.ObjectRemoved, int] | None = None
        #: When a writer or a segment went last: room that was being made may be of no use then.
        self._disturbed_at = -1
        #: Last sign of life, and since when disconnected, on the master's clock.
        self._seen_at: dict[SessionId, int] = {}
        self._disconnected_at: dict[SessionId, int] = {}

    # -- what peers say ------------------------------------------------------------------------------------------

    def hear(self, event: Event, now: int) -> None:
        """Before the facts of its step: what the event is evidence of."""
        if isinstance(event, Disconnected):
            self._disturbed_at = now  # its node's segments are not written to now
            self._disconnected_at.setdefault(event.session, now)
        elif isinstance(event, Hello):
            self._hello(event, now)
        elif isinstance(event, Request):
            self._seen_at[event.session] = now
            self._request(event)

    def _hello(self, event: Hello, now: int) -> None:
        for session, entry in self._ledger.sessions.items():
            if entry.fact.name == event.name and entry.fact.incarnation == event.incarnation:
                self._seen_at[session] = now
                self._disconnected_at.pop(session, None)

    def _request(self, event: Request) -> None:
        match event.command:
            case Fenced(session=writer, segment=segment, number=number):
                self._answered(event.session, writer, segment, number)
            case PutEnd(puts=puts, uncertain=masks) | PutRevoke(puts=puts, uncertain=masks):
                for put_id, mask in zip(puts, masks or (0,) * len(puts), strict=False):
                    entry_of = self._ledger.puts.get(put_id)
                    if entry_of is not None and entry_of.fact.session == event.session:
                        self._drained[put_id] = mask & self._drained.get(put_id, mask)
                        if isinstance(event.command, PutEnd):
                            self._ended.add(put_id)
            case PutForget():
                self._disturbed_at = self._seen_at[event.session]
            case Goodbye():
                self._said_goodbye.add(event.session)
            case Unmount(segment=segment):
                self._unmounted.add(segment)

    def _answered(self, owner: SessionId, writer: SessionId, segment: SegmentId, number: int) -> None:
        """Its word covers that fence, and those sent to the same place before it."""
        entry = self._ledger.segments.get(segment)
        if entry is None or entry.fact.session != owner:
            return
        for sent, (its_writer, its_segment, puts) in self._covered.items():
            if sent <= number and (its_writer, its_segment) == (writer, segment):
                self._fenced.update((put_id, segment) for put_id in puts)

    def instruct(self, instruction: Instruction) -> None:
        """After the facts of its step. A fence covers what is in quarantine now; while its writer lives and is not
        banned, only what the writer gave up itself: it may go on with the rest."""
        if not isinstance(instruction, Fence):
            return
        segment = self._ledger.segments.get(instruction.segment)
        covered = []
        for taken in segment.taken.values() if segment is not None else ():
            entry = self._ledger.puts[taken.put_id]
            given_up = taken.put_id in self._drained
            its_own = taken.holding is Holding.QUARANTINED and entry.fact.session == instruction.session
            if its_own and (instruction.ban or given_up):
                covered.append(taken.put_id)
        self._covered[instruction.number] = (instruction.session, instruction.segment, tuple(covered))

    # -- what is decided -----------------------------------------------------------------------------------------

    def decide(self, fact: facts.Fact, now: int) -> None:
        """Before the fact is entered."""
        match fact:
            case facts.QuarantineEnded():
                self._quarantine_ended(fact)
            case facts.ObjectRemoved():
                self._object_removed(fact, now)
            case facts.ExtentsFreed():
                self._extents_freed(fact, now)
            case facts.ReplicaLost():
                if self._ledger.is_alive(fact.segment):
                    self._add("P8", f"{fact}: segment {fact.segment} is not going anywhere", fact.put_id)
            case facts.SegmentGoing():
                session = self._ledger.segments[fact.segment].fact.session
                if self._ledger.sessions[session].ended is None and fact.segment not in self._unmounted:
                    self._add("P8", f"{fact}: its node's session lives, and did not unmount it")
            case facts.SessionEnded():
                self._session_ended(fact, now)
            case facts.PutClosed() | facts.ObjectCommitted():
                self._put_ended(fact)

    def _quarantine_ended(self, fact: facts.QuarantineEnded) -> None:
        entry = self._ledger.puts[fact.put_id]
        if fact.evidence == "fenced":
            there = (fact.put_id, fact.segment) in self._fenced
        else:
            position = next((i for i, one in enumerate(entry.fact.extents) if one.segment == fact.segment), 0)
            drained = self._drained.get(fact.put_id)
            # A goodbye speaks of all but what was named uncertain before.
            there = not drained >> position & 1 if drained is not None else entry.fact.session in self._said_goodbye
        if not there:
            self._add("P2", f"{fact}: nobody gave that evidence", fact.put_id)

    def _put_ended(self, fact: facts.PutClosed | facts.ObjectCommitted) -> None:
        """Extents that a put leaves are free only if its writer says so, or never heard of them."""
        entry = self._ledger.puts.get(fact.put_id)
        if entry is None:
            return
        if isinstance(fact, facts.ObjectCommitted):
            if fact.put_id not in self._ended:
                self._add("P1", f"{fact}: its writer never said so", fact.put_id)
            if len(fact.landed) < entry.fact.min_replicas:
                self._add("P7", f"{fact}: {entry.fact.min_replicas} copies are required", fact.put_id)
        kept = {*fact.quarantined, *(fact.landed if isinstance(fact, facts.ObjectCommitted) else ())}
        ended = self._ledger.sessions[entry.fact.session].ended
        drained = self._drained.get(fact.put_id)
        for position, extent in enumerate(entry.fact.extents):
            told = fact.put_id in self.told
            word = drained is not None and not drained >> position & 1
            if extent in kept or word or not told or ended == "goodbye" or not self._ledger.is_alive(extent.segment):
                continue
            self._add("P2", f"{fact}: {extent} comes free, but its writer may be at work there", fact.put_id)

    def _object_removed(self, fact: facts.ObjectRemoved, now: int) -> None:
        ledger, key = self._ledger, (fact.scope, fact.hash)
        lease = self._book.covering(fact.put_id, now)
        if lease is not None and not fact.lingering:
            self._add("P2", f"{fact}: lease {lease} is in force", fact.put_id)
        if fact.reason == "evicted":
            if lease is not None:
                self._add("P6", f"{fact}: lease {lease} is in force", fact.put_id)
            if ledger.pins.get(key) == Pin.HARD:
                self._add("P6", f"{fact}: it is hard pinned", fact.put_id)
            children = ledger.children(key)
            if children:
                self._add("P6", f"{fact}: put {children[0].fact.put_id} would be an orphan", fact.put_id)
        elif fact.reason == "replicas lost":
            copies = ledger.puts[fact.put_id].extents(Holding.COMMITTED)
            alive = [extent for extent in copies if ledger.is_alive(extent.segment)]
            if alive:
                self._add("P8", f"{fact}: a copy lives in {alive[0]}", fact.put_id)

    def _extents_freed(self, fact: facts.ExtentsFreed, now: int) -> None:
        lease = self._book.covering(fact.put_id, now)
        if lease is not None:
            self._add("P2", f"{fact}: lease {lease} is in force", fact.put_id)

    def _session_ended(self, fact: facts.SessionEnded, now: int) -> None:
        if fact.reason == "expired":
            silent_ms = now - self._seen_at.get(fact.session, 0)
            gone_ms = now - self._disconnected_at.get(fact.session, now)
            if silent_ms < self._config.session_ttl_ms and gone_ms < self._config.reconnect_grace_ms:
                self._add("P8", f"{fact}: it was heard of {silent_ms} ms ago, and is disconnected for {gone_ms} ms")
        elif fact.reason == "goodbye" and fact.session not in self._said_goodbye:
            self._add("P8", f"{fact}: it never said so")

    # -- a step as a whole ---------------------------------------------------------------------------------------

    def stepped(self, decided: Sequence[facts.Fact], now: int, idle: bool) -> None:
        """P6: whatever is evicted makes room for a put that is opened next, in this step or in one of those that
        follow at once. `idle`: the core has nothing more to do now.

        Room that was made is of no use where its writer, or a segment, went meanwhile, or time passed.
        """
        for fact in decided:
            if isinstance(fact, facts.ObjectRemoved) and fact.reason == "evicted":
                self._evicted = self._evicted or (fact, now)
            elif isinstance(fact, facts.PutOpened):
                self._evicted = None
            elif isinstance(fact, facts.SegmentGoing | facts.SessionEnded | facts.SegmentMounted):
                self._disturbed_at = now
        if self._evicted is not None and idle:
            (fact, since), self._evicted = self._evicted, None
            if since == now and self._disturbed_at != now:
                self._add("P6", f"{fact} made room for nobody", fact.put_id)

    def _add(self, promise: str, text: str, put_id: PutId | None = None) -> None:
        entry = self._ledger.puts.get(put_id) if put_id is not None else None
        self._verdicts.add(promise, text, key=entry.fact.hash if entry is not None else None, put_id=put_id)
