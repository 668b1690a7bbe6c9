"""Who a peer says it is, the shared token, and the sentences with which strangers are refused. Plain values and checks;
both ends of the handshake use them, so that both say the same."""

from __future__ import annotations

from dataclasses import dataclass

from pykvpool.errors import InvalidArgument, Refused
from pykvpool.model.ids import SessionId
from pykvpool.protocol.messages import MAX_NAME_CHARS, MAX_NUMBER, NO_SESSION

#: What a peer may be: a client, a client that may not write, or a node.
ROLES = ("client", "reader", "node")


@dataclass(frozen=True, slots=True)
class Identity:
    """How a peer announces itself. Name and incarnation together are one life of the peer."""

    name: str
    #: One of `ROLES`.
    role: str
    #: Random number of this life, 63 bits.
    incarnation: int
    #: Empty: whichever cluster the master serves.
    cluster: str = ""
    #: Not 0: come back to this session of the master's life `epoch`, never open a new one.
    resume: SessionId = NO_SESSION
    epoch: int = 0

    def check(self) -> None:
        """Raises `InvalidArgument` where every master would refuse it."""
        if not self.name:
            raise InvalidArgument("the name is empty: every client and node needs one of its own")
        if self.role not in ROLES:
            raise InvalidArgument(f"no such role {self.role!r}: it is one of {', '.join(ROLES)}")
        if not 0 <= self.incarnation <= MAX_NUMBER:
            raise InvalidArgument("the incarnation is a number of at most 63 bits")
        check_name("name", self.name)
        check_name("cluster", self.cluster)


def check_name(what: str, text: str) -> None:
    """Raises `InvalidArgument` for a name that could not travel or would garble a log."""
    if len(text) > MAX_NAME_CHARS or not text.isprintable():
        raise InvalidArgument(f"the {what} must be printable and have at most {MAX_NAME_CHARS} characters")


def printable(text: str) -> str:
    """What a stranger wrote, fit for a log: quoted where it holds line breaks or other controls."""
    return text if text.isprintable() else repr(text)


def token_key(token: str | None) -> bytes | None:
    """The key for the proofs. An empty token is refused: it would look like protection and be none."""
    if token is None:
        return None
    if not token:
        raise InvalidArgument("the token is empty: give one, or none at all")
    return token.encode("utf-8", "surrogateescape")


def version_mismatch(master: int, peer: int) -> Refused:
    return Refused(f"this master speaks version {master}, you speak {peer}", master=master, peer=peer)


def cluster_mismatch(master: str, peer: str) -> Refused:
    return Refused(f"cluster {peer!r} is not cluster {master!r}, which this master serves", master=master, peer=peer)
