"""One connection: two ends, and between them two pipes that carry frames in order.

Each pipe is a queue whose head arrives when it is due, if the hosts reach each other then and the receiver has room.
The possible ends, as a process sees them:

- the peer closed: all its frames come, then the end;
- the connection is reset (the peer aborted, died, or a frame reached an end that is gone): frames that had arrived
  come, then a failure;
- the sender gave up on an unreachable peer: its own end fails; the other does not know (half-open) until it sends.

An end knows its receiver by the four words of `Receiver`, and nothing of what frames mean.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pykvpool.errors import PoolError, Unavailable
from pykvpool_sim.life import Life, State

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from pykvpool_sim.network import Network


class Receiver(Protocol):
    """Who owns an end. Called by the network at any time, also while its host is paused: it stores and wakes."""

    @property
    def is_full(self) -> bool:
        """It cannot take another frame now; it calls `End.room_again` later."""
        ...

    def arrived(self, frame: bytes) -> None: ...

    def ended(self, failure: PoolError | None) -> None:
        """Once, after the last frame."""
        ...

    def progressed(self) -> None:
        """`End.unsent_bytes` went down."""
        ...


class Kind(enum.Enum):
    FRAME = "frame"
    #: The sender closed.
    FINISH = "finish"
    #: The connection does not exist any more at the sender.
    RESET = "reset"


@dataclass(slots=True)
class Parcel:
    """What travels."""

    kind: Kind
    frame: bytes
    due_ns: int


class End:
    """One end of a connection, of one life of a host."""

    def __init__(self, network: Network, life: Life, host: str, peer: str) -> None:
        self.life = life
        self.host = host
        self.peer = peer
        self._network = network
        self._loop = network.world.loop
        self.other: End
        self._receiver: Receiver | None = None
        #: What this end sent and what has not arrived, in order.
        self._outgoing: deque[Parcel] = deque()
        #: Bytes of frames in `_outgoing`.
        self.unsent_bytes = 0
        #: When the next of `_outgoing` will be looked at.
        self._pump_timer: TimerHandle | None = None
        #: Set while the peer cannot be reached: when patience ends.
        self._give_up_timer: TimerHandle | None = None
        #: This end takes no more frames from its owner: it was closed, or it broke.
        self.is_over = False
        #: Arrived before the owner attached itself.
        self._early: deque[Parcel] = deque()
        network.opened(self)

    # -- the owner's side ----------------------------------------------------------------------------------------

    def attach(self, receiver: Receiver) -> None:
        """From now on `receiver` gets what arrives."""
        self._receiver = receiver
        while self._early:
            self._receive(self._early.popleft())

    def send(self, frame: bytes) -> None:
        """Frames sent after the end are lost, as the owner's own contract says it."""
        if self.is_over or self.life.state is State.DEAD:
            return
        faults, draws = self._network.faults, self._network.draws
        if draws.chance(faults.break_ratio):
            self._break(half_open=draws.chance(faults.half_open_ratio))
            return
        self.unsent_bytes += len(frame)
        self._push(Kind.FRAME, frame)

    def close(self) -> None:
        """What was sent arrives, then the end. Harmless twice."""
        if not self.is_over:
            self.is_over = True
            self._push(Kind.FINISH)

    def abort(self) -> None:
        """What has not arrived is lost. Harmless twice."""
        if not self.is_over:
            self.is_over = True
            self._drop_outgoing()
            self._push(Kind.RESET)

    def room_again(self) -> None:
        """The receiver can take more."""
        self.other.kick()

    # -- the network's side --------------------------------------------------------------------------------------

    def kick(self) -> None:
        """What held up the head of the queue may be over: look again, after a fresh delay."""
        if self._outgoing and self._pump_timer is None:
            self._outgoing[0].due_ns = self._loop.now_ns + self._network.delay_ns()
            self._pump_at(self._outgoing[0].due_ns)

    def owner_died(self, *, power: bool) -> None:
        """Its life ended. A kernel that lives says so, behind what was sent; otherwise what was on the wire arrives."""
        if power:
            on_the_wire = self._network.draws.between(0, len(self._outgoing))
            while len(self._outgoing) > on_the_wire:
                self.unsent_bytes -= len(self._outgoing.pop().frame)
        elif not self.is_over:
            # Linux finishes in good order, or resets where something was left unread.
            self._push(self._network.draws.choice((Kind.FINISH, Kind.RESET)))
        self.is_over = True
        if not self._outgoing:
            self._network.ended(self)

    def _push(self, kind: Kind, frame: bytes = b"") -> None:
        due_ns = self._loop.now_ns + self._network.delay_ns(len(frame))
        if self._outgoing:
            due_ns = max(due_ns, self._outgoing[-1].due_ns)
        self._outgoing.append(Parcel(kind, frame, due_ns))
        self._network.opened(self)
        if len(self._outgoing) == 1:
            self._pump_at(due_ns)

    def _pump_at(self, world_ns: int) -> None:
        self._pump_timer = self._loop.call_world_at(world_ns, self._pump)

    def _pump(self) -> None:
        """The head of the queue is due: it arrives, or stays until something calls `kick`."""
        self._pump_timer = None
        while self._outgoing:
            head = self._outgoing[0]
            if head.due_ns > self._loop.now_ns:
                self._pump_at(head.due_ns)
                return
            if not self._network.passes(self.host, self.other.host):
                self._wait_for_peer()
                return
            if self._give_up_timer is not None:
                self._give_up_timer.cancel()
                self._give_up_timer = None
            if head.kind is Kind.FRAME and self.other._is_full():
                return
            self._outgoing.popleft()
            self.unsent_bytes -= len(head.frame)
            self.other._receive(head)
            if self._receiver is not None and not self.is_over:
                self._receiver.progressed()
        if self.is_over:
            self._network.ended(self)

    def _is_full(self) -> bool:
        return not self.is_over and self._receiver is not None and self._receiver.is_full

    def _receive(self, parcel: Parcel) -> None:
        if self.is_over:
            # Nobody is here. Frames get told so; an end needs no answer.
            if parcel.kind is Kind.FRAME:
                self._drop_outgoing()
                self._push(Kind.RESET)
        elif self._receiver is None:
            self._early.append(parcel)
        elif parcel.kind is Kind.FRAME:
            self._receiver.arrived(parcel.frame)
        elif parcel.kind is Kind.FINISH:
            # The peer sends no more, and reads no more either: our own protocol has no use for half a connection.
            self._end(None)
        else:
            self._end(Unavailable(f"connection reset by {self.peer}"))

    def _wait_for_peer(self) -> None:
        if self._give_up_timer is None and not self._network.world.hosts[self.host].is_suspended:
            faults = self._network.faults
            patience_ns = self._network.draws.between(faults.min_give_up_ns, faults.max_give_up_ns)
            self._give_up_timer = self._loop.call_world_at(self._loop.now_ns + patience_ns, self._give_up)

    def _give_up(self) -> None:
        self._give_up_timer = None
        if self._pump_timer is not None or not self._outgoing:
            return
        if self.is_over:
            self._drop_outgoing()
            self._network.ended(self)
        else:
            self._end(Unavailable(f"connection to {self.peer} timed out"))

    def _break(self, *, half_open: bool) -> None:
        """The connection is gone and what this end had under way is lost. Where only one end is told, the other learns
        by the answer to what it sends next, if it ever sends."""
        told = [self, self.other]
        if half_open:
            del told[self._network.draws.randrange(2)]
        self._drop_outgoing()
        for end in told:
            # In a later turn, as all news from the network: never inside a call of the owner.
            self._loop.call_world_at(self._loop.now_ns, end._end, Unavailable(f"connection to {end.peer} was reset"))

    def _end(self, failure: PoolError | None) -> None:
        if not self.is_over:
            self.is_over = True
            self._drop_outgoing()
            self._network.ended(self)
            if self._receiver is not None:
                self._receiver.ended(failure)
            else:
                self._early.clear()

    def _drop_outgoing(self) -> None:
        self._outgoing.clear()
        self.unsent_bytes = 0
        for timer in (self._pump_timer, self._give_up_timer):
            if timer is not None:
                timer.cancel()
        self._pump_timer = self._give_up_timer = None


def connect_pipes(network: Network, near_life: Life, near: str, far_life: Life, far: str) -> tuple[End, End]:
    """The two ends of a new connection."""
    near_end = End(network, near_life, near, far)
    far_end = End(network, far_life, far, near)
    near_end.other, far_end.other = far_end, near_end
    return near_end, far_end
