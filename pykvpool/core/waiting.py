"""Keys that could not be granted at once: who waits for another writer, who for room, and in what order.

A *ticket* is one key's place. It is QUEUED for room in one FIFO queue of the whole pool: while anybody queues nobody
is granted anything past the head, so what comes free accumulates for it. Or it is FOLLOWING the writer of its key (an
open put, or a ticket that itself is queued): when that writer commits, all followers are told so; when it ends without
an object, the first follower takes over with a put_id and extents of its own.

A ticket has its own deadline. Once DECIDED its outcome waits to be collected by put_wait. Everything here is soft.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

from pykvpool.core.context import Context
from pykvpool.core.deadlines import Deadlines
from pykvpool.core.jobs import Slice
from pykvpool.core.placement import Wish
from pykvpool.core.placer import Placer
from pykvpool.core.puts import Key, OpenPut
from pykvpool.core.refusal import refusal
from pykvpool.core.tickets import GRANT_UNITS, Entry, Ticket, TicketState, Wait
from pykvpool.errors import KeyConflict, NotReady, PoolError, PoolFull, SegmentGone, StalePut
from pykvpool.model.ids import PutId, RequestId, SessionId, TicketId
from pykvpool.model.replies import ErrorInfo, Existing, Pending, PutGrant, PutStarted


class Waiting:
    """Tickets, the queue for room, and the requests that wait for tickets."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.tickets: dict[TicketId, Ticket] = {}
        self.by_session: dict[SessionId, dict[TicketId, None]] = {}
        #: Undecided tickets.
        self.undecided = 0
        #: For room, in order; tickets that are not QUEUED any more are skipped.
        self._queue: deque[Ticket] = deque()
        #: The queued ticket of a key that nobody writes.
        self._queued_by_key: dict[Key, Ticket] = {}
        self._followers: dict[Key, deque[Ticket]] = {}
        #: Open puts whose grant no reply has told yet: their writers do not know the extents, nothing can land.
        self.untold: set[PutId] = set()
        self._last_ticket = 0
        self._deadlines = Deadlines(self._ticket_deadline, lambda: len(self.tickets))
        self._waits: dict[int, Wait] = {}
        self._last_wait = 0
        self._wait_deadlines = Deadlines(self._wait_deadline, lambda: len(self._waits))
        #: Waits of which a ticket was decided in this step.
        self._ready: dict[int, None] = {}
        #: The queue may move, but this step has done enough.
        self.pump_pending = False
        self._placer = Placer(context)

    # -- keys --------------------------------------------------------------------------------------------------------

    def enter(self, wish: Wish, work: Slice) -> Entry:
        """A key that is not readable: granted, pending or (raised) an error.

        A key whose room is not made within one slice is pending even if it does not wait: see `outcome`.
        """
        context = self._context
        writer = context.state.puts.by_key.get(wish.key)
        queued = self._queued_by_key.get(wish.key)
        if writer is not None or queued is not None:
            size = writer.size_bytes if writer is not None else queued.wish.size_bytes if queued is not None else 0
            if size != wish.size_bytes:
                raise KeyConflict(
                    f"the key is being written with {size} bytes, not {wish.size_bytes}: content addressed keys never "
                    "change their bytes",
                    size_bytes=size,
                    asked_bytes=wish.size_bytes,
                )
            if not wish.wait_ms:
                raise NotReady("the key is being written by another client, and wait_ms is 0")
            ticket = self._new_ticket(wish, TicketState.FOLLOWING)
            self._followers.setdefault(wish.key, deque()).append(ticket)
            return Pending(ticket.id, True)
        if not self._placer.is_busy() and self._head() is None:
            put = self._placer.begin(wish, work)
            if put is not None:
                self.untold.add(put.put_id)
                return PutGrant(put.put_id, put.extents)
            if self._placer.is_busy():
                return Pending(self._stand_first(wish).id, False)
        else:
            context.placement.check(wish)
        if not wish.wait_ms:
            raise context.placement.full(wish)
        ticket = self._new_ticket(wish, TicketState.QUEUED)
        self._join_queue(ticket)
        return Pending(ticket.id, False)

    def outcome(self, session: SessionId, ident: TicketId) -> Generator[None, None, Entry]:
        """What becomes of a ticket that does not wait, only for its own placing to end."""
        while (ticket := self._mine(session, ident)) is not None and ticket.state is not TicketState.DECIDED:
            yield
        return self._collect(session, ident)

    def committed(self, put: OpenPut) -> None:
        """The writer of a key committed: that is success for all who followed."""
        self._tell_followers(put.key, put.put_id)

    def _tell_followers(self, key: Key, put_id: PutId) -> None:
        for ticket in self._followers.pop(key, ()):
            if ticket.state is TicketState.FOLLOWING:
                self._context.counters["waits_existing_total"] += 1
                self._decide(ticket, Existing(put_id))

    def holder_gone(self, key: Key) -> None:
        """The writer of a key ended without an object: the first follower that can takes over."""
        followers = self._followers.get(key)
        while followers:
            ticket = followers.popleft()
            if ticket.state is TicketState.FOLLOWING and self._context.is_live(ticket.wish.session):
                if not self._placer.is_busy() and self._head() is None:
                    # A pause was for another head.
                    self._context.placement.retry_at = 0
                ticket.state = TicketState.QUEUED
                self._join_queue(ticket)
                self.pump_pending = True
                break
        if followers is not None and not followers:
            self._followers.pop(key, None)

    def pump(self) -> None:
        """Grant what can be granted, strictly in order, within one slice."""
        self.pump_pending = self._placer.has_worked()
        if self.pump_pending:
            return
        work = self._context.new_slice()
        while (ticket := self._next_in_line()) is not None:
            decided = self._decide_first(ticket, work)
            if self._placer.is_busy():
                self.pump_pending = True
                return
            if not decided and ticket.deadline <= self._context.now:
                self._time_out(ticket)
            elif not decided:
                # What happened during a long search may have been what it lacked.
                self.pump_pending = self._context.placement.has_news()
                return
            if work.spend(GRANT_UNITS):
                self.pump_pending = True
                return

    def is_placing(self) -> bool:
        """Is somebody being placed, over several steps?"""
        return self._placer.is_busy()

    def is_only_placing(self) -> bool:
        """Is a key being placed and nobody behind it? Then one that does not wait may hold on, it has not long to."""
        return self._placer.is_busy() and len(self._queued_by_key) < 2

    def _next_in_line(self) -> Ticket | None:
        if self._placer.ticket is not None:
            return self._placer.ticket
        return self._head() if self._context.placement.retry_at <= self._context.now else None

    def _decide_first(self, ticket: Ticket, work: Slice) -> bool:
        """Go on with the first in line; False: it is being placed still, or it has to wait."""
        entry: Entry | None
        try:
            entry = self._placer.readable(ticket.wish) or self._grant(ticket, work)
        except PoolError as error:
            entry = refusal(error)
        if self._placer.is_busy():
            return False
        if ticket.state is not TicketState.QUEUED or not self._context.is_live(ticket.wish.session):
            return True
        if entry is None:
            return False
        self._leave_queue(ticket)
        self._decide(ticket, entry)
        if isinstance(entry, Existing):
            self._tell_followers(ticket.wish.key, entry.put_id)
        elif isinstance(entry, ErrorInfo):
            self.holder_gone(ticket.wish.key)
        return True

    def _grant(self, ticket: Ticket, work: Slice) -> PutGrant | None:
        put = self._placer.go_on(ticket, work)
        if put is None:
            return None
        self.untold.add(put.put_id)
        self._context.counters["waits_granted_total"] += 1
        return PutGrant(put.put_id, put.extents)

    # -- put_wait ----------------------------------------------------------------------------------------------------

    def wait(self, session: SessionId, request_id: RequestId, ids: tuple[TicketId, ...], deadline: int) -> None:
        """Answer the request when a ticket is decided, at once if one is (or is unknown), or at the deadline."""
        wait = Wait(session, request_id, ids, deadline)
        tickets = [self._mine(session, ident) for ident in ids]
        if deadline <= self._context.now or any(t is None or t.state is TicketState.DECIDED for t in tickets):
            self._answer(wait)
            return
        self._last_wait += 1
        self._waits[self._last_wait] = wait
        self._wait_deadlines.add(self._last_wait, deadline)
        for ticket in tickets:
            if ticket is not None:
                ticket.waits.append(self._last_wait)

    def flush(self) -> None:
        """Answer the waits for which something was decided in this step."""
        ready, self._ready = self._ready, {}
        for ident in ready:
            wait = self._waits.pop(ident, None)
            if wait is not None:
                self._answer(wait)

    def _answer(self, wait: Wait) -> None:
        entries = tuple(self._collect(wait.session, ident) for ident in wait.tickets)
        self._context.answer(wait.session, wait.request_id, self.started(entries))

    def _collect(self, session: SessionId, ident: TicketId) -> Entry:
        ticket = self._mine(session, ident)
        if ticket is None:
            return ErrorInfo.of(StalePut(f"ticket {ident} is not open: it was collected, or its put ran out of time"))
        if ticket.state is not TicketState.DECIDED or ticket.entry is None:
            return Pending(ident, ticket.state is TicketState.FOLLOWING)
        self._forget(ticket)
        return ticket.entry

    def started(self, entries: tuple[Entry, ...]) -> PutStarted:
        """The reply that tells these entries, with the segments they name.

        A grant whose segment went before anybody was told is taken back: the writer asks again.
        """
        context = self._context
        checked: list[Entry] = []
        named: dict[int, None] = {}
        for entry in entries:
            if isinstance(entry, PutGrant):
                put = context.state.puts.by_id.get(entry.put_id)
                if put is None or len(context.live_extents(put)) < len(put.extents):
                    if put is not None:
                        context.close_put(put, (), "segment lost")
                    checked.append(ErrorInfo.of(SegmentGone("the segment went before its extents were told")))
                    continue
                self.untold.discard(entry.put_id)
                named.update(dict.fromkeys(extent.segment for extent in entry.extents))
            checked.append(entry)
        segments = context.state.segments.by_id
        return PutStarted(tuple(checked), tuple(segments[segment].descriptor for segment in named))  # type: ignore[index]

    def give_up(self, session: SessionId, ids: tuple[TicketId, ...], work: Slice) -> Generator[None, None, None]:
        """The writer no longer wants these, in slices; a grant it was never told of is free at once."""
        for ident in ids:
            ticket = self._mine(session, ident)
            if ticket is None:
                continue
            entry = ticket.entry
            self._drop(ticket)
            if isinstance(entry, PutGrant):
                put = self._context.state.puts.by_id.get(entry.put_id)
                if put is not None:
                    self._context.close_put(put, (), "revoked")
            if work.spend(GRANT_UNITS):
                yield

    # -- time and ends -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        times = [self._deadlines.next(), self._wait_deadlines.next()]
        if self._context.placement.retry_at > self._context.now and self._head() is not None:
            times.append(self._context.placement.retry_at)
        return min((time for time in times if time is not None), default=None)

    def expire(self) -> bool:
        """End what is due, within one slice; True: there is more."""
        now, work = self._context.now, self._context.new_slice()
        while (ident := self._wait_deadlines.pop_due(now)) is not None:
            self._ready[ident] = None
            if work.spend(GRANT_UNITS):
                return True
        while (ident := self._deadlines.pop_due(now)) is not None:
            ticket = self.tickets[TicketId(ident)]
            if ticket is not self._placer.ticket:
                # Otherwise `pump` looks at its time when its placing has ended.
                self._time_out(ticket)
            if work.spend(GRANT_UNITS):
                return True
        return False

    def drop_session(self, session: SessionId, work: Slice) -> Generator[None, None, None]:
        """Its tickets go, in slices, and whoever followed one takes over."""
        for ident in [ident for ident, wait in self._waits.items() if wait.session == session]:
            del self._waits[ident]
        for ticket_id in list(self.by_session.get(session, ())):
            self._drop(self.tickets[ticket_id])
            if work.spend(GRANT_UNITS):
                yield

    def _drop(self, ticket: Ticket) -> None:
        """It waits no longer; whoever followed it takes over."""
        was_queued = ticket.state is TicketState.QUEUED
        if self._placer.ticket is ticket:
            self._placer.cancel()
        if ticket.state is not TicketState.DECIDED:
            self.undecided -= 1
        self._forget(ticket)
        if was_queued:
            self._leave_queue(ticket)
            self.holder_gone(ticket.wish.key)

    def _time_out(self, ticket: Ticket) -> None:
        if ticket.state is TicketState.DECIDED:
            self._forget(ticket)
            return
        self._context.counters["waits_timed_out_total"] += 1
        if ticket.state is TicketState.FOLLOWING:
            error: PoolError = NotReady(
                "the key is still being written by another client, and the time to wait is over"
            )
            self._decide(ticket, ErrorInfo.of(error))
            return
        self._leave_queue(ticket)
        self._decide(ticket, ErrorInfo.of(self._context.placement.full(ticket.wish)))
        self.holder_gone(ticket.wish.key)

    # -- tickets -----------------------------------------------------------------------------------------------------

    def _head(self) -> Ticket | None:
        queue = self._queue
        while queue:
            if queue[0].state is TicketState.QUEUED and self._context.is_live(queue[0].wish.session):
                return queue[0]
            queue.popleft()
        return None

    def _join_queue(self, ticket: Ticket) -> None:
        self._queue.append(ticket)
        self._queued_by_key[ticket.wish.key] = ticket

    def _leave_queue(self, ticket: Ticket) -> None:
        if self._queued_by_key.get(ticket.wish.key) is ticket:
            del self._queued_by_key[ticket.wish.key]

    def _stand_first(self, wish: Wish) -> Ticket:
        """The ticket of a key whose placing has just begun. Raises `PoolFull` where too many wait already."""
        try:
            ticket = self._new_ticket(wish, TicketState.QUEUED)
        except PoolFull:
            self._placer.cancel()
            raise
        finally:
            self.pump_pending = True
        self._placer.ticket = ticket
        self._join_queue(ticket)
        return ticket

    def _new_ticket(self, wish: Wish, state: TicketState) -> Ticket:
        context = self._context
        if self.undecided >= context.config.max_waiting:
            context.counters["pool_full_total"] += 1
            raise PoolFull(
                f"{self.undecided} keys wait already, the most allowed (max_waiting): try again later",
                waiting=self.undecided,
            )
        self._last_ticket += 1
        deadline = context.now + min(wish.wait_ms, context.config.max_wait_ms)
        ticket = Ticket(TicketId(self._last_ticket), wish, state, deadline)
        self.tickets[ticket.id] = ticket
        self.by_session.setdefault(wish.session, {})[ticket.id] = None
        self.undecided += 1
        context.counters["waits_total"] += 1
        self._deadlines.add(ticket.id, deadline)
        return ticket

    def _decide(self, ticket: Ticket, entry: Entry) -> None:
        ticket.state, ticket.entry = TicketState.DECIDED, entry
        ticket.deadline = self._context.now + self._context.config.put_ttl_ms
        self._deadlines.add(ticket.id, ticket.deadline)
        self.undecided -= 1
        self._ready.update(dict.fromkeys(ticket.waits))

    def _forget(self, ticket: Ticket) -> None:
        ticket.state = TicketState.GONE
        del self.tickets[ticket.id]
        mine = self.by_session[ticket.wish.session]
        del mine[ticket.id]
        if not mine:
            del self.by_session[ticket.wish.session]

    def _mine(self, session: SessionId, ident: TicketId) -> Ticket | None:
        ticket = self.tickets.get(ident)
        return ticket if ticket is not None and ticket.wish.session == session else None

    def _ticket_deadline(self, ident: int) -> int | None:
        ticket = self.tickets.get(TicketId(ident))
        return None if ticket is None else ticket.deadline

    def _wait_deadline(self, ident: int) -> int | None:
        wait = self._waits.get(ident)
        return None if wait is None else wait.deadline
