"""What one step of the master decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from pykvpool.model.facts import Fact
from pykvpool.model.ids import RequestId, SessionId
from pykvpool.model.instructions import Instruction
from pykvpool.model.replies import Reply


@dataclass(slots=True)
class Effects:
    """Everything a step wants done, in order. The shell sends replies only after the facts are where they must be."""

    #: (session, request, reply). The answer to a `Hello` has session 0 and the connection's number as its request id.
    replies: list[tuple[SessionId, RequestId, Reply]] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    #: (session, instruction): sent if that session is connected now; the core repeats what still stands on reconnect.
    instructions: list[tuple[SessionId, Instruction]] = field(default_factory=list)
