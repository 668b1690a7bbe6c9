"""The handshake's two transition tables: all that each end may see, and where it leads.

`handshake` moves by these tables and by nothing else, and `mermaid()` draws them for the documentation, so that code
and diagram cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Stage(Enum):
    """How far a handshake has come; the value is for messages and diagrams."""

    START = "start"
    HELLO_SENT = "hello sent"
    CHALLENGE_SENT = "challenge sent"
    PROOF_SENT = "proof sent"
    PROVED = "proved"
    OPEN = "open"
    REFUSED = "refused"


class Seen(Enum):
    """What moves a handshake."""

    #: The connection is there (the peer's end begins).
    OPENED = "connection opened"
    HELLO = "hello"
    CHALLENGE = "challenge"
    PROOF = "proof"
    ACCEPTED = "accepted"
    #: The master's core opened or resumed the session.
    ADMITTED = "session admitted"
    #: The other end refuses.
    FAREWELL = "farewell"
    #: This end refuses: version, cluster, token or session do not fit, or a message out of place.
    MISFIT = "misfit"


Table = Mapping[tuple[Stage, Seen], Stage]

CLIENT_TABLE: Table = {
    (Stage.START, Seen.OPENED): Stage.HELLO_SENT,
    (Stage.HELLO_SENT, Seen.CHALLENGE): Stage.PROOF_SENT,
    (Stage.HELLO_SENT, Seen.FAREWELL): Stage.REFUSED,
    (Stage.HELLO_SENT, Seen.MISFIT): Stage.REFUSED,
    (Stage.PROOF_SENT, Seen.ACCEPTED): Stage.OPEN,
    (Stage.PROOF_SENT, Seen.FAREWELL): Stage.REFUSED,
    (Stage.PROOF_SENT, Seen.MISFIT): Stage.REFUSED,
}

SERVER_TABLE: Table = {
    (Stage.START, Seen.HELLO): Stage.CHALLENGE_SENT,
    (Stage.START, Seen.MISFIT): Stage.REFUSED,
    (Stage.START, Seen.FAREWELL): Stage.REFUSED,
    (Stage.CHALLENGE_SENT, Seen.PROOF): Stage.PROVED,
    (Stage.CHALLENGE_SENT, Seen.FAREWELL): Stage.REFUSED,
    (Stage.CHALLENGE_SENT, Seen.MISFIT): Stage.REFUSED,
    (Stage.PROVED, Seen.ADMITTED): Stage.OPEN,
    (Stage.PROVED, Seen.MISFIT): Stage.REFUSED,
}


def mermaid(table: Table) -> str:
    """A mermaid state diagram of one table, the same text every time."""
    names = {stage: stage.value.replace(" ", "_") for stage in Stage}
    lines = ["stateDiagram-v2", f"    [*] --> {names[Stage.START]}"]
    lines += [f"    {names[stage]} --> {names[to]}: {seen.value}" for (stage, seen), to in table.items()]
    lines += [f"    {names[end]} --> [*]" for end in (Stage.OPEN, Stage.REFUSED)]
    return "\n".join(lines) + "\n"
