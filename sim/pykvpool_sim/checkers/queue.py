"""P7: who waits for room is served in order, and nobody waits longer than was agreed.

The queue is known by its tickets, as the master hands them out: numbers rise, and a ticket that is pending for room
(not `in_progress`) stands in line. If such a ticket is granted in the end, nobody who came later may have been granted
anything between the moment it was seen in line and its own grant.
"""

from __future__ import annotations

from dataclasses import dataclass

from pykvpool.model import facts
from pykvpool.model.commands import PutStart, PutWait
from pykvpool.model.ids import PutId, RequestId, SessionId, TicketId
from pykvpool.model.replies import Pending, PutGrant, PutStarted
from pykvpool_sim.checkers.answers import Answer
from pykvpool_sim.checkers.ledger import Ledger
from pykvpool_sim.checkers.verdicts import Verdicts

#: How late an answer to put_wait may be, on the master's clock: it is timed to the millisecond, and a step may be long.
WAIT_SLACK_MS = 1_000


@dataclass(slots=True)
class InLine:
    """A ticket that was seen pending for room."""

    hash: bytes
    #: Grants so far when it was seen.
    seen_at: int


class QueueChecker:
    """One life of the master."""

    def __init__(self, ledger: Ledger, verdicts: Verdicts) -> None:
        self._ledger = ledger
        self._verdicts = verdicts
        #: Every put in the order of opening.
        self._opened: list[PutId] = []
        self._in_line: dict[TicketId, InLine] = {}
        #: Which ticket led to a put, once that was told; 0: none, it was granted at once.
        self._ticket_of: dict[PutId, TicketId] = {}
        #: put_wait requests without an answer: when it has to be there.
        self._waits: dict[tuple[SessionId, RequestId], int] = {}

    def opened(self, fact: facts.PutOpened) -> None:
        self._opened.append(fact.put_id)

    def asked(self, session: SessionId, request_id: RequestId, command: PutWait, now: int, max_wait_ms: int) -> None:
        deadline = now + min(command.timeout_ms, max_wait_ms)
        self._waits.setdefault((session, request_id), deadline)

    def answered(self, answer: Answer, now: int) -> None:
        self._waits.pop((answer.session, answer.request_id), None)
        if not isinstance(answer.reply, PutStarted):
            return
        for position, entry in enumerate(answer.reply.entries):
            if isinstance(entry, Pending) and not entry.in_progress and isinstance(answer.command, PutStart):
                self._in_line[entry.ticket] = InLine(answer.command.hashes[position], len(self._opened))
            elif isinstance(entry, PutGrant):
                ticket = answer.command.tickets[position] if isinstance(answer.command, PutWait) else TicketId(0)
                self._ticket_of[entry.put_id] = ticket
                if ticket in self._in_line:
                    self._check_order(ticket, entry.put_id)

    def _check_order(self, ticket: TicketId, put_id: PutId) -> None:
        """Everything granted between the two moments must have been before it in line."""
        seen = self._in_line.pop(ticket)
        for other in self._opened[seen.seen_at : self._opened.index(put_id)]:
            its_ticket = self._ticket_of.get(other)
            if its_ticket is not None and (its_ticket == 0 or its_ticket > ticket):
                self._verdicts.add(
                    "P7",
                    f"ticket {ticket} stood in line for {seen.hash!r} when put {other} was granted "
                    f"({f'ticket {its_ticket}' if its_ticket else 'without waiting'}); it got put {put_id}",
                    key=seen.hash,
                    put_id=put_id,
                )

    def stepped(self, now: int) -> None:
        """Waits whose time is over have an answer, or nobody to give it to."""
        for (session, request_id), deadline in list(self._waits.items()):
            if self._ledger.sessions[session].ended is not None:
                del self._waits[session, request_id]
            elif now > deadline + WAIT_SLACK_MS:
                del self._waits[session, request_id]
                self._verdicts.add(
                    "P7", f"put_wait {request_id} of session {session} has no answer {now - deadline} ms after its time"
                )
