"""Fences that stand: asking owners to make sure that nothing of a writer can land any more.

A fence is for one place, a (writer, segment). It is level-triggered: sent when it is needed and the node is connected,
again when the node comes back, and again after an answer that left something over. Two subtleties keep it honest:

- An answer covers what was quarantined *when the fence was sent*, not what came later: the writer may have begun that
  after its connections were cut. So each sending has a number and remembers its puts; an answer settles the sending
  that it names and those before it, of which some may never have arrived.
- A live writer is not banned, it may connect anew. What it has given up itself (put_end or put_revoke named the extent
  uncertain) it never writes again, so cutting its connections is enough. A put that merely ran out of time is another
  matter: its writer may not know and go on. Those wait for the writer's own word, or for the end of its session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

from pykvpool.core.context import Context
from pykvpool.core.jobs import Slice
from pykvpool.errors import NotOwner
from pykvpool.model.facts import QuarantineEnded
from pykvpool.model.ids import PutId, SegmentId, SessionId
from pykvpool.model.instructions import Fence

Place = tuple[SessionId, SegmentId]
#: Units of a slice (see `jobs`) that freeing one quarantined extent costs.
FREE_UNITS = 8


@dataclass(slots=True)
class Standing:
    """Sendings for one place that have no answer yet."""

    #: Oldest first: the number of each one, and the puts it covers.
    sendings: deque[tuple[int, tuple[PutId, ...]]] = field(default_factory=deque)
    #: Did the last one ban the writer?
    ban: bool = False


class Fences:
    """Soft state: after a restart of the master all sessions are over, and everything is fenced anew."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._standing: dict[Place, Standing] = {}
        self._last_number = 0
        #: Quarantined puts that their live writer gave up itself.
        self._given_up: set[PutId] = set()

    def give_up(self, put_id: PutId) -> None:
        """The writer itself said that it is done with the put, though something may still land."""
        self._given_up.add(put_id)

    def need(self, writer: SessionId, segment: SegmentId) -> None:
        """Something of `writer` may be quarantined in `segment`: send a fence unless one that will do stands."""
        place = (writer, segment)
        ban = not self._context.is_live(writer)
        standing = self._standing.get(place)
        if standing is None or (ban and not standing.ban):
            self._send(place)

    def session_over(self, writer: SessionId) -> None:
        """The writer is gone for good: it can be banned, and everything of it fenced."""
        for place in list(self._context.state.puts.by_place):
            if place[0] == writer:
                self.need(*place)

    def resume(self, node: SessionId) -> None:
        """A node is back: what stands is sent again."""
        segments = self._context.state.segments.by_id
        for place in list(self._context.state.puts.by_place):
            if segments[place[1]].session == node:
                self._send(place)

    def answered(self, writer: SessionId, segment: SegmentId, number: int, work: Slice) -> Generator[None, None, None]:
        """The owner's word: what this sending, and those before it, cover is free. In slices; what is left over is
        fenced anew."""
        place = (writer, segment)
        standing = self._standing.get(place)
        if standing is None:
            return
        while standing.sendings and standing.sendings[0][0] <= number:
            yield from self._free(place, standing.sendings.popleft()[1], "fenced", work)
        if not standing.sendings and self._standing.get(place) is standing:
            del self._standing[place]
            self._send(place)

    def drained(self, session: SessionId, put_id: PutId, uncertain: int) -> None:
        """The writer's word that it has drained, but for the replicas in the mask. Raises `NotOwner`."""
        record = self._context.state.puts.quarantined.get(put_id)
        if record is None:
            return
        if record.session != session:
            raise NotOwner(f"put {put_id} belongs to another session")
        for position, extent in enumerate(record.grant):
            if extent.segment not in record.held:
                continue
            if uncertain >> position & 1:
                self.give_up(put_id)
                self.need(session, extent.segment)
            else:
                self._free_one((session, extent.segment), put_id, "drained")

    def all_drained(self, session: SessionId, work: Slice) -> Generator[None, None, None]:
        """The writer left in order: nothing of it is under way but what it gave up itself. In slices.

        Of that it said that something may still land, and leaving makes no difference: the owner has to answer.
        """
        by_place = self._context.state.puts.by_place
        for place in [place for place in by_place if place[0] == session]:
            drained = tuple(put_id for put_id in by_place.get(place, ()) if put_id not in self._given_up)
            yield from self._free(place, drained, "drained", work)

    def segment_gone(self, segment: SegmentId) -> None:
        """The end of a generation was evidence enough; no answer is awaited."""
        for place in [place for place in self._standing if place[1] == segment]:
            del self._standing[place]
        self._given_up = {put_id for put_id in self._given_up if put_id in self._context.state.puts.quarantined}

    def _free(self, place: Place, puts: tuple[PutId, ...], evidence: str, work: Slice) -> Generator[None, None, None]:
        for put_id in puts:
            if work.is_over:
                yield
            self._free_one(place, put_id, evidence)
            work.spend(FREE_UNITS)

    def _free_one(self, place: Place, put_id: PutId, evidence: str) -> None:
        context = self._context
        if put_id in context.state.puts.by_place.get(place, ()):
            context.counters[f"quarantine_{evidence}_total"] += 1
            context.emit(QuarantineEnded(put_id, place[1], evidence))
            if put_id not in context.state.puts.quarantined:
                self._given_up.discard(put_id)

    def _send(self, place: Place) -> None:
        context = self._context
        writer, segment = place
        node = context.segment_session(segment)
        ban = not context.is_live(writer)
        puts = context.state.puts.by_place.get(place, {})
        covered = tuple(put_id for put_id in puts if ban or put_id in self._given_up)
        identity = context.state.sessions.identity(writer)
        if node is None or not covered or identity is None:
            return
        standing = self._standing.setdefault(place, Standing())
        self._last_number += 1
        standing.sendings.append((self._last_number, covered))
        standing.ban = ban
        context.counters["fences_sent_total"] += 1
        context.instruct(node, Fence(writer, identity.name, identity.incarnation, segment, ban, self._last_number))
