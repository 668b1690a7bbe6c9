"""Replies by request id, kept until the session says that they arrived: a repeat gets the first reply again.

A request is *pending* while its reply is still to come (a writer that waits, a batch in slices); a repeat of it gets
nothing of its own, the one reply goes out once when it is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from pykvpool.model.ids import RequestId
from pykvpool.model.replies import Reply


class Seen(Enum):
    """What is known of a request id."""

    NEW = auto()
    PENDING = auto()
    ANSWERED = auto()
    #: Its reply arrived, by the session's own word, and is forgotten.
    ACKNOWLEDGED = auto()


@dataclass(slots=True)
class ReplyLog:
    """The requests of one session. Ids rise, and `acknowledged` says that all up to it are over."""

    #: Request id -> its reply, None while pending. Bounded by max_requests_per_session.
    replies: dict[RequestId, Reply | None] = field(default_factory=dict)
    acknowledged: int = 0

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

    def seen(self, request_id: RequestId) -> Seen:
        if request_id in self.replies:
            return Seen.PENDING if self.replies[request_id] is None else Seen.ANSWERED
        return Seen.ACKNOWLEDGED if request_id <= self.acknowledged else Seen.NEW
