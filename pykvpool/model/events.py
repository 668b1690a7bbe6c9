"""What happens to the master core. Its shell turns connections and time into these; the simulator does the same."""

from __future__ import annotations

from pykvpool.model.base import Tagged
from pykvpool.model.commands import Command
from pykvpool.model.ids import RequestId, SessionId


class _Event(Tagged, frozen=True, tag=True):
    """Base of all events."""


class Hello(_Event, frozen=True, tag="hello"):
    """A peer passed the handshake. `connection` is the shell's number for it and addresses the `Welcome`.

    Same name and incarnation: the session resumes. Same name, other incarnation: the new one supersedes the old.
    """

    connection: int
    name: str
    #: "client", "reader" (a client that may not write) or "node".
    role: str
    #: Random number of this life of the peer.
    incarnation: int
    #: Not 0: the peer wants this session back, and must get no other: it would not know that what it held is gone.
    resume: SessionId = SessionId(0)


class Request(_Event, frozen=True, tag="request"):
    """A command. Replies to requests up to `acknowledged`, and to those in `received`, have arrived: their stored
    copies may go. (Without `received` one long wait would pin the replies to all requests after it.)"""

    session: SessionId
    request_id: RequestId
    acknowledged: RequestId
    command: Command
    received: tuple[RequestId, ...] = ()


class Disconnected(_Event, frozen=True, tag="disconnected"):
    """The control connection of a session is gone; the session itself lives on until its grace ends."""

    session: SessionId


class Tick(_Event, frozen=True, tag="tick"):
    """Nothing but time passed: `next_deadline()` was reached."""


Event = Hello | Request | Disconnected | Tick
