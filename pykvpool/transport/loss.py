"""The end of a session as its owner sees it: which kind, and what may be done about it."""

from __future__ import annotations

from dataclasses import dataclass

from pykvpool.errors import SessionExpired
from pykvpool.protocol.messages import Parting

#: What a farewell can say that ends the session and not just the connection.
SESSION_ENDS = (Parting.EXPIRED, Parting.SUPERSEDED, Parting.RESTARTED)


@dataclass(frozen=True, slots=True)
class SessionLoss:
    """Why a session is over."""

    #: EXPIRED, SUPERSEDED or RESTARTED; NONE after a failure of our own.
    reason: Parting
    #: For people.
    message: str

    @property
    def final(self) -> bool:
        """Renewing would take the name back from another process."""
        return self.reason is Parting.SUPERSEDED

    def error(self, name: str) -> SessionExpired:
        """What calls of session `name` end with; its field ``parting`` is the reason."""
        return SessionExpired(f"session {name!r} is over: {self.message}", parting=self.reason.value)


def loss_of(error: SessionExpired) -> SessionLoss:
    """The loss that a master's error speaks of: EXPIRED where it gives no reason that is known."""
    given = error.fields.get("parting")
    reason = next((reason for reason in SESSION_ENDS if reason.value == given), Parting.EXPIRED)
    return SessionLoss(reason, error.message)
