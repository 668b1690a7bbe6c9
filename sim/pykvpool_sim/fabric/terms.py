"""What can go wrong on the data network, and what its watchers are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pykvpool.fabric.base import Peer
from pykvpool.model.ids import Generation, PutId
from pykvpool_sim.clock import NS_PER_MS, NS_PER_S
from pykvpool_sim.fabric.memory import SimMemory


@dataclass(frozen=True, slots=True)
class FabricFaults:
    """How data travels. Delays in nanoseconds, drawn evenly; ratios are probabilities per piece or operation."""

    min_delay_ns: int = 2_000
    max_delay_ns: int = 30_000
    #: An operation becomes visible in so many pieces, in any order.
    min_pieces: int = 1
    max_pieces: int = 3
    #: A piece takes longer by up to `slow_ns`; those behind it wait.
    slow_ratio: float = 0.0
    slow_ns: int = 10 * NS_PER_S
    #: The operation fails at the owner after some of its pieces.
    read_error_ratio: float = 0.0
    write_error_ratio: float = 0.0
    #: Everything landed, and the word of it is lost: the queue pair breaks.
    lost_ack_ratio: float = 0.0
    #: A write is acknowledged when the owner's NIC has it; up to this much later it is in memory. A read behind it on
    #: the same queue pair finds it there.
    place_ns: int = 2_000
    #: Of what is on the wire when its sender goes away, this part takes up to `linger_ns` longer.
    linger_ratio: float = 0.0
    linger_ns: int = 20 * NS_PER_S
    #: Longest that taking down a queue pair takes: at its user's end, and at the owner's (a fence waits for it).
    flush_ns: int = 50_000
    fence_ns: int = 50_000
    #: How long a NIC sends again to a peer that does not answer before it gives the queue pair up.
    min_retry_ns: int = 200 * NS_PER_MS
    max_retry_ns: int = 2 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Landing:
    """One piece of one operation that touched remote memory."""

    peer: Peer
    #: Hosts of the peer and of the memory.
    source: str
    target: str
    #: Of the descriptor that the peer used.
    generation: Generation
    memory: SimMemory
    offset: int
    length: int
    #: None: a read.
    put_id: PutId | None
    #: Number of the operation that this is a piece of.
    operation: int
    #: Its sender had given up, or died, before.
    late: bool


@dataclass(frozen=True, slots=True)
class Taking:
    """Bytes that a NIC took out of local buffers, to send them. Whether they ever land is another matter."""

    peer: Peer
    put_id: PutId | None
    data: bytes


class Watcher(Protocol):
    """Sees every touch, outside the code under test."""

    def landed(self, landing: Landing) -> None:
        """After the bytes are there (or were taken)."""
        ...
