"""One queue pair: operations are carried out in order, piece by piece, by two NICs that need no process to do so.

A piece travels to the owner, and there bytes land or are taken; then an answer travels back: a completion, or bytes
for the reader's own buffers. Within one queue pair everything stays in order; a failed operation fails all behind it.

Each end is OPEN, then FLUSHING (it is being taken down, things still happen), then GONE (nothing happens at this end
any more). The two ends do not know of each other's state but by what arrives:

- the *near* end is the initiator's. GONE means: its local buffers are its own again. What is on the wire then may
  still land at the owner.
- the *far* end is the owner's. GONE means: nothing of this peer lands here any more. That is what a fence waits for.

A write's answer says that the owner's NIC has the bytes; they are in memory a little later. A read that follows on the
same queue pair pushes them there, and so does taking down the far end: a put has landed when that read came back.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pykvpool.errors import PoolError, TransferFailed, Unavailable, invariant
from pykvpool.fabric.base import Peer
from pykvpool.model.ids import Generation, PutId
from pykvpool_sim.clock import NS_PER_MS
from pykvpool_sim.fabric.buffers import put_bytes, take_bytes
from pykvpool_sim.fabric.memory import SimMemory
from pykvpool_sim.fabric.terms import Landing, Taking
from pykvpool_sim.life import Life, State

if TYPE_CHECKING:
    from pykvpool_sim.fabric.wire import DataNetwork

#: How often a NIC sends again to a peer that does not answer.
_SEND_AGAIN_NS = 50 * NS_PER_MS


class End(enum.Enum):
    """See the module."""

    OPEN = "open"
    FLUSHING = "flushing"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Work:
    """One operation that was posted."""

    offset: int
    length: int
    #: Local buffers: read from (a write) or written to (a read) at any time until it is done.
    pieces: Sequence[memoryview]
    #: None: a read.
    put_id: PutId | None
    #: Names it.
    number: int
    #: None: it succeeded; else why not. Never an exception.
    done: asyncio.Future[PoolError | None]
    #: Pieces on their way, either way.
    left: int = 0
    #: It fails at the owner when so many pieces are left; -1: it does not.
    fails_at: int = -1
    #: All lands, and the answer is lost.
    loses_ack: bool = False
    #: It moves nothing: it reads to see that what was written before is in memory.
    confirms: bool = False

    def finish(self, error: PoolError | None) -> None:
        if not self.done.done():
            self.done.set_result(error)


@dataclass(slots=True, eq=False)
class Piece:
    """Part of an operation."""

    work: Work
    #: Within the operation.
    start: int
    length: int
    due_ns: int
    #: The bytes: of a write whose buffers are not looked at any more, or of a read on its way back.
    data: bytes | None = None
    #: Its sender had gone before it came to the owner.
    late: bool = False


@dataclass(slots=True, eq=False)
class QueuePair:
    """Made by `DataNetwork.connect`."""

    network: DataNetwork
    near: Life
    source: str
    target: str
    rkey: int
    #: Of the protection domain: what the descriptor said, and the owner agreed to.
    generation: Generation
    peer: Peer
    near_end: End = End.OPEN
    far_end: End = End.OPEN
    far: Life | None = None
    #: Posted and not done, in order.
    _works: deque[Work] = field(default_factory=deque)
    #: On the way to the owner, and back.
    _there: deque[Piece] = field(default_factory=deque)
    _back: deque[Piece] = field(default_factory=deque)
    #: Taken by the owner's NIC and not in memory yet, in order.
    _unplaced: deque[Piece] = field(default_factory=deque)
    _last_due_ns: int = 0
    _last_back_ns: int = 0
    #: Since when nothing comes through, and until when it is tried.
    _patience_ends_ns: int | None = None
    _near_gone: asyncio.Future[None] | None = None
    _far_gone: asyncio.Future[None] | None = None

    # -- the initiator -------------------------------------------------------------------------------------------

    def accepted(self, far: Life) -> None:
        """For `DataNetwork`: the owner agreed."""
        self.far = far

    def post(self, offset: int, length: int, pieces: Sequence[memoryview], put_id: PutId | None) -> Work:
        """Begin an operation; must be OPEN. Its `done` says how it went; until then the buffers are the NIC's."""
        network = self.network
        faults, draws = network.faults, network.draws
        work = Work(offset, length, pieces, put_id, network.next_number(), network.loop.create_future())
        self._works.append(work)
        cuts = _cut(length, draws.between(faults.min_pieces, faults.max_pieces))
        if len(cuts) > 1:
            draws.shuffle(cuts)
        work.left = len(cuts)
        if draws.chance(faults.read_error_ratio if put_id is None else faults.write_error_ratio):
            work.fails_at = draws.between(1, len(cuts))
        work.loses_ack = draws.chance(faults.lost_ack_ratio)
        for start, size in cuts:
            self._last_due_ns = max(self._last_due_ns, network.loop.now_ns) + network.delay_ns()
            self._there.append(Piece(work, start, size, self._last_due_ns))
            self._at(self._last_due_ns, self._arrive)
        return work

    def confirm(self) -> Work:
        """Read a few bytes behind everything posted so far: with its answer all writes among that are in memory."""
        work = self.post(0, 0, (), None)
        work.confirms = True
        return work

    def destroy(self) -> asyncio.Future[None]:
        """Take down the near end. When the future is done, nothing touches local buffers any more and all works are
        done. Harmless twice."""
        if self._near_gone is None:
            self._near_gone = self.network.loop.create_future()
            if self.near_end is End.OPEN:
                self.near_end = End.FLUSHING
                self.network.after(self.network.draws.between(0, self.network.faults.flush_ns), self.near_ends)
            else:
                self._near_gone.set_result(None)
        return self._near_gone

    def near_ends(self, error: PoolError | None = None) -> None:
        """The near end is GONE: for `DataNetwork`, and for whatever breaks it."""
        if self.near_end is End.GONE:
            return
        self.near_end = End.GONE
        self._leave_on_the_wire()
        self._back.clear()
        works, self._works = self._works, deque()
        for work in works:
            self.network.counts["flushed operation"] += 1
            work.finish(error or TransferFailed("the queue pair was taken down"))
        if self._near_gone is not None and not self._near_gone.done():
            self._near_gone.set_result(None)

    def _leave_on_the_wire(self) -> None:
        """The sender is gone: some of what it sent is on the wire, and lands when it lands."""
        draws, faults = self.network.draws, self.network.faults
        # What was asked for comes back to nobody.
        self._there = deque(piece for piece in self._there if piece.work.put_id is not None)
        kept = draws.between(0, len(self._there))
        while len(self._there) > kept:
            self._there.pop()
        later_ns = draws.between(0, faults.linger_ns) if kept and draws.chance(faults.linger_ratio) else 0
        for piece in self._there:
            self._take(piece)
            piece.due_ns += later_ns
            self._at(piece.due_ns, self._arrive)

    @property
    def is_over(self) -> bool:
        """Nothing will ever happen here again: the owner may forget it."""
        return self.near_end is End.GONE and not self._there

    # -- the owner -----------------------------------------------------------------------------------------------

    def cut_off(self) -> asyncio.Future[None]:
        """Take down the far end. When the future is done, nothing of this peer lands here any more, and the peer was
        told if it could be reached."""
        if self._far_gone is None:
            self._far_gone = self.network.loop.create_future()
            if self.far_end is End.OPEN:
                self.far_end = End.FLUSHING
            self.network.after(self.network.draws.between(0, self.network.faults.fence_ns), self._far_ends)
        return self._far_gone

    def _far_ends(self) -> None:
        self._place_all()
        self.far_end = End.GONE
        if self.near_end is End.OPEN and self.network.passes(self.target, self.source):
            self.network.after(self.network.delay_ns(), self._word_of_the_end)
        else:
            self._far_is_gone()

    def _word_of_the_end(self) -> None:
        self.near_ends(TransferFailed(f"{self.target} took down the queue pair"))
        self._far_is_gone()

    def _far_is_gone(self) -> None:
        if self._far_gone is not None and not self._far_gone.done():
            self._far_gone.set_result(None)

    # -- the wire ------------------------------------------------------------------------------------------------

    def _at(self, world_ns: int, callback: Callable[[], None]) -> None:
        self.network.loop.call_world_at(world_ns, callback)

    def _arrive(self) -> None:
        """The first piece on the way there may be due."""
        network = self.network
        if not self._there or self._there[0].due_ns > network.loop.now_ns:
            return
        if self.near.state is State.DEAD and self.near_end is not End.GONE:
            self.near_ends()
            return
        if not network.passes(self.source, self.target):
            self._wait_or_break(self._arrive)
            return
        if self.far_end is End.GONE:
            # A card does not answer for a queue pair that it does not know: silence, until the sender's patience ends.
            if self.near_end is End.GONE:
                self._there.clear()
            else:
                self._wait_or_break(self._arrive)
            return
        self._patience_ends_ns = None
        if self.far is None or self.far.state is State.DEAD:
            # The owner's process took its queue pairs along, and the connection on which they were agreed on.
            self._refused("the owner is gone")
            return
        piece = self._there.popleft()
        work = piece.work
        memory = network.find(self.target, self.rkey)
        if memory is None or memory.closed or memory.generation != self.generation:
            self._refused("the key names nothing here")
            return
        if work.offset + work.length > memory.size_bytes:
            self._refused("out of bounds")
            return
        if work.fails_at == work.left:
            network.counts["failed operation"] += 1
            self._refused("the operation failed at the owner")
            return
        self._touch(piece, memory)

    def _touch(self, piece: Piece, memory: SimMemory) -> None:
        """Bytes land, or are taken."""
        network, work = self.network, piece.work
        late = self.near_end is End.GONE
        if work.put_id is not None:
            self._take(piece)
            piece.late = late
            self._unplaced.append(piece)
            network.after(network.draws.between(0, network.faults.place_ns), self._place, piece)
        else:
            self._place_all()
            offset = work.offset + piece.start
            piece.data = bytes(memory.view[offset : offset + piece.length])
            if not work.confirms:
                self._saw(piece, memory)
        if late:
            return
        self._last_back_ns = max(self._last_back_ns, network.loop.now_ns) + network.delay_ns()
        piece.due_ns = self._last_back_ns
        self._back.append(piece)
        work.left -= 1
        self._at(piece.due_ns, self._return)

    def _take(self, piece: Piece) -> None:
        """The NIC reads the local buffers of a write, unless it has before."""
        if piece.data is None:
            piece.data = take_bytes(piece.work.pieces, piece.start, piece.length)
            self.network.took(Taking(self.peer, piece.work.put_id, piece.data))

    def _place(self, piece: Piece) -> None:
        """What a NIC took is in memory: this piece, and those before it."""
        while piece in self._unplaced:
            first = self._unplaced.popleft()
            memory = self.network.find(self.target, self.rkey)
            if memory is not None and not memory.closed and memory.generation == self.generation:
                offset = first.work.offset + first.start
                memory.view[offset : offset + first.length] = first.data or b""
                self._saw(first, memory)

    def _place_all(self) -> None:
        if self._unplaced:
            self._place(self._unplaced[-1])

    def _saw(self, piece: Piece, memory: SimMemory) -> None:
        work = piece.work
        self.network.saw(
            Landing(
                self.peer, self.source, self.target, self.generation, memory, work.offset + piece.start, piece.length,
                work.put_id, work.number, piece.late,
            )
        )  # fmt: skip

    def _return(self) -> None:
        """The first answer on the way back may be due."""
        network = self.network
        if not self._back or self._back[0].due_ns > network.loop.now_ns or self.near_end is End.GONE:
            return
        if self.near.state is State.DEAD:
            self.near_ends()
            return
        if not network.passes(self.target, self.source):
            self._wait_or_break(self._return)
            return
        self._patience_ends_ns = None
        piece = self._back.popleft()
        work = piece.work
        last = work.left == 0 and not any(other.work is work for other in self._back)
        if last and work.loses_ack:
            network.counts["lost acknowledgement"] += 1
            self.near_ends(Unavailable(f"the connection to {self.target} broke"))
            return
        if work.put_id is None and piece.data is not None:
            put_bytes(work.pieces, piece.start, piece.data)
            if self.near_end is End.FLUSHING:
                network.counts["landing in local buffers while flushing"] += 1
        if last:
            invariant(self._works.popleft() is work, "operations of one queue pair end in order")
            work.finish(None)

    def _refused(self, reason: str) -> None:
        """The owner's NIC says no: the queue pair is broken there at once, and here when the word arrives."""
        self.far_end = End.GONE
        self._there.clear()
        if self.near_end is not End.GONE:
            self.network.counts["broken queue pair"] += 1
            self.network.after(
                self.network.delay_ns(), self._word_of_refusal, TransferFailed(f"{self.target}: {reason}")
            )

    def _word_of_refusal(self, error: PoolError) -> None:
        if self.near_end is End.GONE:
            return
        if self.network.passes(self.target, self.source):
            self.near_ends(error)
        else:
            self._wait_or_break(lambda: self._word_of_refusal(error))

    def _wait_or_break(self, again: Callable[[], None]) -> None:
        """Nothing comes through: later, or never. A NIC that sleeps loses no patience."""
        network = self.network
        asleep = network.world.hosts[self.source].is_suspended
        if self.near_end is End.GONE and network.draws.chance(0.1):
            self._there.clear()  # nobody sends it again
            return
        if asleep or self.near_end is End.GONE:
            self._patience_ends_ns = None
        elif self._patience_ends_ns is None:
            faults = network.faults
            self._patience_ends_ns = network.loop.now_ns + network.draws.between(
                faults.min_retry_ns, faults.max_retry_ns
            )
        elif network.loop.now_ns >= self._patience_ends_ns:
            network.counts["unreachable peer"] += 1
            self.near_ends(Unavailable(f"{self.target} does not answer"))
            return
        self._at(network.loop.now_ns + _SEND_AGAIN_NS, again)


def _cut(length: int, count: int) -> list[tuple[int, int]]:
    """`count` ranges of about equal length (at most `length` of them; one for nothing)."""
    count = max(1, min(count, length))
    bounds = [length * number // count for number in range(count + 1)]
    return [(start, end - start) for start, end in itertools.pairwise(bounds)]
