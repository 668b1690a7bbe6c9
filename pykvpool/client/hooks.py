"""What the control session calls back."""

from __future__ import annotations

from pykvpool.client.link import MasterLink
from pykvpool.model.commands import Command, PutForget, PutRevoke, PutStart, PutWait, Release
from pykvpool.model.instructions import BlocksRemoved, Instruction
from pykvpool.model.replies import Located, Matched, Pending, PutGrant, PutStarted, Reply


class SessionHooks:
    """What the control session calls. It exists before the client does."""

    def __init__(self) -> None:
        self.link: MasterLink | None = None

    def instruction(self, instruction: Instruction) -> None:
        """The master tells without being asked."""
        if self.link is not None and isinstance(instruction, BlocksRemoved):
            self.link.removed(instruction.scope, instruction.hashes)

    def orphan_reply(self, command: Command, reply: Reply) -> None:
        """A reply came after its caller had given up: give back what it granted."""
        if self.link is None:
            return
        life = self.link.life
        if isinstance(command, PutStart | PutWait) and isinstance(reply, PutStarted):
            # Nothing was written under these grants: they are free at once.
            grants = tuple(entry.put_id for entry in reply.entries if isinstance(entry, PutGrant))
            tickets = tuple(entry.ticket for entry in reply.entries if isinstance(entry, Pending))
            if grants:
                self.link.tell(PutRevoke(grants), life)
            if tickets:
                self.link.tell(PutForget(tickets), life)
        elif isinstance(reply, Located | Matched) and reply.lease is not None:
            self.link.tell(Release((reply.lease,)), life)
