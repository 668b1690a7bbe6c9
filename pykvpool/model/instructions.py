"""What the master tells a session without being asked. They are level-triggered: an instruction stands until its answer
(a command) arrives, and is sent again when the session reconnects; carrying one out twice is harmless."""

from __future__ import annotations

from pykvpool.model.base import Tagged
from pykvpool.model.ids import PutId, ScopeId, SegmentId, SessionId
from pykvpool.model.objects import Extent


class _Instruction(Tagged, frozen=True, tag=True):
    """Base of all instructions."""


class Fence(_Instruction, frozen=True, tag="fence"):
    """To a node: make sure that nothing that `session` began can land in `segment` any more, then say `Fenced`.

    Its data connections are closed and their receives ended; with `ban` (the session is over) later ones are refused.
    """

    session: SessionId
    #: Its name and incarnation, under which data connections announced themselves.
    name: str
    incarnation: int
    segment: SegmentId
    ban: bool
    #: Of this sending, rising; the answer names it, so that it is known what the answer covers.
    number: int


class HashExtents(_Instruction, frozen=True, tag="hash_extents"):
    """To a node: hash your own copies of unsummed objects, then say `Hashed`."""

    segment: SegmentId
    puts: tuple[PutId, ...]
    extents: tuple[Extent, ...]


class DropSegment(_Instruction, frozen=True, tag="drop_segment"):
    """To a node: the master no longer knows this mount; destroy its generation, then mount anew."""

    segment: SegmentId


class BlocksRemoved(_Instruction, frozen=True, tag="blocks_removed"):
    """To who watches `scope`: these blocks have left the pool. Said once, and not again after a reconnect."""

    scope: ScopeId
    hashes: tuple[bytes, ...]


class SessionOver(_Instruction, frozen=True, tag="session_over"):
    """Your session is expired or superseded; the reason is for people."""

    reason: str


Instruction = Fence | HashExtents | DropSegment | BlocksRemoved | SessionOver
