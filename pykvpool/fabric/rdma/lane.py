"""A lane: one connected queue pair, and what is under way on it.

Requests of a queue pair end in order, so one completion speaks for everything posted before it. That allows *selective
signalling*: only the last request of each post, and one in a few, ask for a completion. A request that fails always
completes, breaks the queue pair, and all behind it is flushed.

A write's completion says that the owner's card has the bytes, not that they are in memory. They are when a small read
of the same memory, posted behind it on the same queue pair, has completed. So a lane *confirms* its writes: a few bytes
are read from each chunk that was written since the last time.

Here is counted what keeps the send queue from overflowing: requests posted and not known to be done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pykvpool.errors import invariant
from pykvpool.fabric.rdma.completions import LANE_BITS, Completions, lane_numbers
from pykvpool.fabric.rdma.local_memory import LocalMemory
from pykvpool.fabric.rdma.rails import Rail
from pykvpool.fabric.rdma.registration import Registration
from pykvpool.fabric.rdma.slices import Part, Slice
from pykvpool.fabric.rdma.staging import Slot
from pykvpool.fabric.verbs import Completion, Opcode, Piece, QueuePair, Status, WorkRequest

#: Requests that may be under way: far more than a link needs with slices of 1 MiB, enough for small ones.
SEND_DEPTH = 256
#: Pieces of local memory in one request, where the device takes so many.
MAX_PIECES = 16
#: Bytes that may be under way: what a 400 Gbit/s link moves in 160 us, in which the loop surely looks again. What is
#: not posted has not begun: a call that is torn off leaves little in doubt.
WINDOW_BYTES = 8 * 1024 * 1024
#: At least one request in so many asks for a completion, so that room comes free while a long post is carried out.
SIGNAL_EVERY = 16
#: Chunks written between two confirmations; each takes a read, for which room is kept.
MAX_UNCONFIRMED_CHUNKS = 8
#: Bytes read to confirm.
CONFIRM_BYTES = 8
#: What a completion says of the number of its request: the rest is the lane's.
_LOW = (1 << LANE_BITS) - 1


@dataclass(frozen=True, slots=True)
class RemoteMemory:
    """The mount, as one rail of its owner serves it."""

    address: int
    size_bytes: int
    chunk_bytes: int
    #: One per chunk.
    rkeys: tuple[int, ...]

    def rkey(self, offset: int) -> int:
        return self.rkeys[offset // self.chunk_bytes]

    def room(self, offset: int) -> int:
        """Bytes from `offset` on that the same key opens."""
        return min(self.chunk_bytes - offset % self.chunk_bytes, self.size_bytes - offset)


@dataclass(slots=True)
class Posted:
    """One request under way."""

    #: Which of this lane's requests it is, counted from 1.
    number: int
    #: None: it confirms.
    slice: Slice | None
    #: The last read of a confirmation: with it every write before has landed.
    confirms: bool = False


@dataclass(slots=True)
class Progress:
    """What some completions of a lane brought."""

    #: Slices that ended well, in order: reads whose bytes are here, writes that have landed.
    done: list[Slice]
    #: The completion that says that the queue pair is broken; None: it is not.
    failure: Completion | None = None


class Lane:
    """See the module. `take` is told of completions until `close`."""

    def __init__(
        self,
        rail: Rail,
        pair: QueuePair,
        completions: Completions,
        memory: LocalMemory,
        remote: RemoteMemory,
        remote_rail: str,
        send_depth: int,
    ) -> None:
        self.rail = rail
        self.remote_rail = remote_rail
        self.number = next(lane_numbers)
        #: The owner's name for the other end; -1 while it is not connected.
        self.handle = -1
        self._pair = pair
        self._completions = completions
        self._memory = memory
        self._remote = remote
        #: Room in the send queue. Some is kept for confirming.
        self._depth = send_depth
        #: Chunks written between two confirmations: a short queue has no room for many reads.
        self._most_unconfirmed = max(1, min(MAX_UNCONFIRMED_CHUNKS, send_depth // 2 - 1))
        self._sequence = 0
        #: In the order of posting.
        self._posted: deque[Posted] = deque()
        #: Writes that were acknowledged and are not confirmed.
        self._acknowledged: list[Slice] = []
        #: An offset in each chunk that was written since the last confirmation was posted.
        self._unconfirmed: dict[int, int] = {}
        self._bytes = 0
        self._gathering: list[WorkRequest] = []
        #: It takes no more slices: others are there in its place.
        self.leaving = False
        self.closed = False

    def __repr__(self) -> str:
        return f"lane {self.number} from {self.rail.name} to {self.remote_rail}"

    def join(self, taker: Callable[[list[Completion]], None]) -> None:
        """From now on completions go to `taker`, which hands them to `take`."""
        self._completions.join(self.number, taker)

    # -- posting -------------------------------------------------------------------------------------------------

    @property
    def load_bytes(self) -> int:
        """Bytes under way."""
        return self._bytes

    @property
    def has_room(self) -> bool:
        """Whether another slice may be posted, and then be confirmed with all that is not confirmed by now."""
        kept = len(self._unconfirmed) + 1
        return self._bytes < WINDOW_BYTES and len(self._posted) + 1 + kept <= self._depth

    @property
    def must_confirm(self) -> bool:
        """Too much is unconfirmed to take another write."""
        return len(self._unconfirmed) >= self._most_unconfirmed

    def add(self, slice_: Slice) -> None:
        """Take a slice; `post` sends it. The lane has room. Raises `PoolError` where its memory is refused here."""
        device, memory = self.rail.device, self._memory
        parts = slice_.parts if slice_.slot is None else _parts_of(slice_.slot, slice_.length, memory.arena)
        pieces = tuple([memory.piece(part.registration, device, part.address, part.length) for part in parts])
        if slice_.item.is_write:
            self._unconfirmed[slice_.offset // self._remote.chunk_bytes] = slice_.offset
        self._append(slice_.item.is_write, pieces, slice_.offset, Posted(self._next(), slice_))
        self._bytes += slice_.length

    def confirm(self) -> None:
        """Take the reads that prove that all writes so far have landed; `post` sends them. Does nothing where there is
        nothing to prove."""
        offsets, self._unconfirmed = list(self._unconfirmed.values()), {}
        memory = self._memory
        address = memory.staging.scratch_address
        for number, offset in enumerate(offsets):
            length = min(CONFIRM_BYTES, self._remote.room(offset))
            piece = memory.piece(memory.arena, self.rail.device, address, length)
            posted = Posted(self._next(), None, confirms=number == len(offsets) - 1)
            self._append(False, (piece,), offset, posted)

    def probe(self) -> None:
        """Read a few bytes, to see whether it works. Raises `PoolError`."""
        self._unconfirmed[0] = 0
        self.confirm()
        self.post()

    def post(self) -> None:
        """Send what was taken. Raises `VerbsError`: the lane is broken then."""
        requests, self._gathering = self._gathering, []
        if not requests:
            return
        last = requests[-1]
        if not last.signaled:
            requests[-1] = WorkRequest(last.id, last.opcode, last.pieces, last.remote_address, last.rkey, True)
        self._pair.post(requests)

    def _append(self, is_write: bool, pieces: tuple[Piece, ...], offset: int, posted: Posted) -> None:
        invariant(len(self._posted) < self._depth, "the send queue never overflows")
        self._posted.append(posted)
        self._gathering.append(
            WorkRequest(
                self.number << LANE_BITS | posted.number & _LOW,
                Opcode.WRITE if is_write else Opcode.READ,
                pieces,
                self._remote.address + offset,
                self._remote.rkey(offset),
                self._sequence % SIGNAL_EVERY == 0,
            )
        )

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    # -- completions ---------------------------------------------------------------------------------------------

    def take(self, completions: list[Completion]) -> Progress:
        """Account for completions of this lane, in order."""
        progress = Progress([])
        for completion in completions:
            number = self._number_of(completion)
            if completion.status is not Status.SUCCESS:
                self._ended_before(number, progress)
                progress.failure = completion
                break
            self._ended_before(number + 1, progress)
        return progress

    def _number_of(self, completion: Completion) -> int:
        """Of the request that it is for: its low bits, and of the numbers with these the next one that is due."""
        oldest = self._posted[0].number if self._posted else 0
        return oldest + ((completion.id - oldest) & _LOW)

    def _ended_before(self, number: int, progress: Progress) -> None:
        """Everything posted before that request ended well."""
        while self._posted and self._posted[0].number < number:
            posted = self._posted.popleft()
            if posted.slice is None:
                if posted.confirms:
                    progress.done += self._acknowledged
                    self._acknowledged = []
                continue
            self._bytes -= posted.slice.length
            if posted.slice.item.is_write:
                self._acknowledged.append(posted.slice)
            else:
                progress.done.append(posted.slice)

    # -- the end -------------------------------------------------------------------------------------------------

    def carries(self, wanted: Callable[[Slice], bool]) -> bool:
        """Whether a slice that `wanted` picks is under way here."""
        return any(wanted(slice_) for slice_ in self.under_way)

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way here, confirmations included."""
        return bool(self._posted or self._acknowledged or self._unconfirmed)

    @property
    def under_way(self) -> list[Slice]:
        """Slices that have not ended, in order of posting: writes that were acknowledged and not confirmed first."""
        return [*self._acknowledged, *(posted.slice for posted in self._posted if posted.slice is not None)]

    @property
    def head(self) -> Slice | None:
        """After a failure, the slice that it is about: that of the oldest request which has not ended, or the oldest
        write that this was to confirm."""
        if not self._posted:
            return None
        return self._posted[0].slice or next(iter(self._acknowledged), None)

    def close(self) -> list[Slice]:
        """Destroy the queue pair: when this returns no card touches local memory through it. What was under way.

        Raises `VerbsError` where the device refuses: nothing is known then, and nothing new is taken; to be repeated.
        """
        self.closed = True
        slices = self.under_way
        self.rail.device.let_go(self._pair.close)
        self._completions.leave(self.number, self._depth)
        self._posted.clear()
        self._acknowledged = []
        return slices


def _parts_of(slot: Slot, length: int, arena: Registration) -> list[Part]:
    """The slot's memory; in several parts only where a device takes less than all slots in one registration."""
    parts = []
    address, end = slot.address, slot.address + length
    while address < end:
        parts.append(Part(address, min(end - address, arena.room(address)), arena))
        address += parts[-1].length
    return parts
