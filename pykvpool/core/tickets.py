"""What one key that waits is: its ticket, and the put_wait requests that ask about tickets. `waiting` moves them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from pykvpool.core.placement import Wish
from pykvpool.model.ids import RequestId, SessionId, TicketId
from pykvpool.model.replies import ErrorInfo, Existing, Pending, PutGrant

Entry = PutGrant | Existing | Pending | ErrorInfo

#: Units of a slice (see `jobs`) that granting one key costs, besides what making room for it does.
GRANT_UNITS = 16
#: Stands for a key that has no ticket; real ones count from 1.
NO_TICKET = TicketId(0)


class TicketState(Enum):
    QUEUED = auto()
    FOLLOWING = auto()
    DECIDED = auto()
    GONE = auto()


@dataclass(slots=True)
class Ticket:
    id: TicketId
    wish: Wish
    state: TicketState
    #: While undecided, when it is answered with an error; once decided, when an uncollected outcome is dropped (ms).
    deadline: int
    #: The outcome, once decided.
    entry: Entry | None = None
    #: Waits (put_wait requests) that named it.
    waits: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wait:
    """One put_wait that has no reply yet."""

    session: SessionId
    request_id: RequestId
    tickets: tuple[TicketId, ...]
    deadline: int
