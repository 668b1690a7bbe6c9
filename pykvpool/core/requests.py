"""Replies by request id, kept until the session says that they arrived: a repeat gets the first reply again.

A request is *pending* while its reply is still to come (a writer that waits, a batch in slices); a repeat of it gets
nothing of its own, the one reply goes out once when it is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from pykvpool.errors import InvalidArgument
from pykvpool.model.ids import RequestId
from pykvpool.model.replies import Reply

#: Most ids that a session may skip at once: what it could have in flight on a connection that broke, many times over.
MAX_LEAP = 65_536


class Seen(Enum):
    """What is known of a request id."""

    NEW = auto()
    PENDING = auto()
    ANSWERED = auto()
    #: Its reply arrived, by the session's own word, and is forgotten.
    ACKNOWLEDGED = auto()


@dataclass(slots=True)
class ReplyLog:
    """The requests of one session. Ids rise by one, but may arrive out of order after a reconnect.

    What was taken once is never new again, however its reply was forgotten: a late duplicate must not be carried out.
    """

    #: Request id -> its reply, None while pending. Bounded by max_requests_per_session.
    replies: dict[RequestId, Reply | None] = field(default_factory=dict)
    #: All up to it are over, by the session's word.
    acknowledged: int = 0
    #: Highest id taken, and the ids between `acknowledged` and it that were not taken yet (nearly always none).
    highest: int = 0
    skipped: set[int] = field(default_factory=set)

    def acknowledge(self, up_to: RequestId, received: tuple[RequestId, ...] = ()) -> None:
        """Replies up to `up_to`, and those to `received`, have arrived: forget them."""
        for number in received:
            if self.replies.get(number) is not None:
                del self.replies[number]
        if up_to <= self.acknowledged:
            return
        if up_to - self.acknowledged < len(self.replies):
            for request_id in range(self.acknowledged + 1, up_to + 1):
                self.replies.pop(RequestId(request_id), None)
        else:
            self.replies = {number: reply for number, reply in self.replies.items() if number > up_to}
        self.acknowledged = up_to
        if self.skipped:
            self.skipped = {number for number in self.skipped if number > up_to}

    def seen(self, request_id: RequestId) -> Seen:
        """What is known of an id. Raises `InvalidArgument` for one that leaps ahead."""
        if request_id in self.replies:
            return Seen.PENDING if self.replies[request_id] is None else Seen.ANSWERED
        if request_id <= self.acknowledged:
            return Seen.ACKNOWLEDGED
        ahead = request_id - max(self.highest, self.acknowledged)
        if ahead > MAX_LEAP:
            raise InvalidArgument(
                f"request {request_id} leaps {ahead} ids ahead: ids rise by one, at most {MAX_LEAP} skipped"
            )
        return Seen.NEW if ahead > 0 or request_id in self.skipped else Seen.ACKNOWLEDGED

    def take(self, request_id: RequestId) -> None:
        """A new request is under way."""
        self.replies[request_id] = None
        if request_id > self.highest:
            self.skipped.update(range(max(self.highest, self.acknowledged) + 1, request_id))
            self.highest = request_id
        else:
            self.skipped.discard(request_id)
