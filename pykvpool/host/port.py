"""The port between an engine and the pool: what an engine's thread may do without ever waiting (promise P9).

An engine's thread puts jobs and questions in and polls for what came of them; every method returns at once, none does
I/O. Whether a port's work is done by a thread of this process or by the host's node is the port's business, and so is
how bytes get from the pool into the engine's memory.

Whatever happens, a job that was taken is answered exactly once, and only when nothing can touch its memory any more:
completions drained, or their channel destroyed. A load that has failed says so; a save that was dropped says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from pykvpool.model.keys import Scope


@dataclass(frozen=True, slots=True)
class Run:
    """One contiguous piece of every block of a cache group: block ``b`` has it at ``base + b * stride``."""

    #: Address in the engine's process, in bytes.
    base: int
    #: From one block to the next, in bytes.
    stride: int
    #: Of one piece, in bytes.
    length: int


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """When GPU memory may be used: an engine's kernels run behind its back."""

    #: Handle of a CUDA event that must be reached before; it was recorded behind the latest work on the blocks.
    after: int
    #: What keeps the event alive.
    owner: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """Blocks of one cache group on one rank that a job moves. An object is a block's runs one after another."""

    scope: Scope
    #: Keys of the blocks, in the order of their chain.
    keys: tuple[bytes, ...]
    #: Where each lies in the engine's tensors, as many as keys.
    block_ids: tuple[int, ...]
    runs: tuple[Run, ...]
    #: Key of the block before each, None for the first of its chain; as many as keys. Only saves need them.
    parents: tuple[bytes | None, ...] = ()
    #: Set where the runs are GPU memory; None: host memory. Only a port of the engine's own process can move the first.
    device: DeviceOrder | None = None

    @property
    def block_bytes(self) -> int:
        return sum(run.length for run in self.runs)


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Put blocks into the pool. What the pool has is skipped; what finds no room is dropped, not waited for."""

    job_id: int
    groups: tuple[BlockGroup, ...]
    #: From submission on; what is not stored by then is dropped.
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Bring blocks from the pool: all of them, or the load has failed."""

    job_id: int
    groups: tuple[BlockGroup, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class SaveDone:
    job_id: int
    #: Blocks that this job stored, that the pool had already, and that were dropped.
    stored: int = 0
    existed: int = 0
    dropped: int = 0
    bytes_stored: int = 0
    #: How many blocks were dropped for which reason (an error code's name, "fenced", ...).
    reasons: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadDone:
    job_id: int
    #: Every block is in place and vouched for.
    loaded: bool
    bytes_loaded: int = 0
    #: Why not, for people; empty where loaded.
    error: str = ""
    #: Code name of that error, for counting.
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Question:
    """One chain of keys in the scopes of every rank that holds its parts."""

    scopes: tuple[Scope, ...]
    keys: tuple[bytes, ...]
    #: False: how many of the first keys are readable in every scope. True: which of the keys are, in every scope.
    presence: bool = False


@dataclass(frozen=True, slots=True)
class Lookup:
    """Everything one request asks: a question for each cache group. What matched is held until `PoolPort.release`."""

    lookup_id: int
    questions: tuple[Question, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to one question."""

    #: Keys from the first on that are readable in every scope.
    count: int
    #: One byte for each key, 1: readable in every scope. Empty unless `Question.presence`.
    presence: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a lookup. Without an error what was found is held: its lease is renewed until it is released."""

    lookup_id: int
    found: tuple[Found, ...] = ()
    error: str = ""
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Lapsed:
    """The hold of a lookup is gone (the master restarted, a renewal came too late): ask again before relying on it."""

    lookup_id: int


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that left a scope that is watched, as far as this port was told (for an engine's cache events)."""

    scope: Scope
    #: Empty: the port has lost sight of the scope for a while, anything may have gone.
    keys: tuple[bytes, ...]


#: What polling brings.
PortEvent = SaveDone | LoadDone | Answer | Lapsed | Removed


class PoolPort(Protocol):
    """All that an engine's process does with the pool. One thread uses it; only `reset` and `close` wait."""

    @property
    def placement(self) -> str:
        """Where the work is done, for the log: "the node 'host-a' on this host", "a thread of this process", ..."""
        ...

    @property
    def connected(self) -> bool:
        """The pool was reachable when last tried. Jobs are taken either way; without a pool they fail soon."""
        ...

    def save(self, job: SaveJob) -> None: ...

    def load(self, job: LoadJob) -> None: ...

    def lookup(self, lookup: Lookup) -> None: ...

    def release(self, lookup_id: int) -> None:
        """Give up a lookup's hold, or the lookup itself where it is not answered yet (then it never is)."""
        ...

    def watch(self, scopes: tuple[Scope, ...]) -> None:
        """From now on tell of blocks that leave these scopes, beside those named before (`Removed`)."""
        ...

    def fence(self) -> None:
        """What the saves taken so far have not stored yet is dropped ("fenced"); each reports when it has drained."""
        ...

    def poll(self) -> list[PortEvent]:
        """What came to an end since the last call. Never waits."""
        ...

    def reset(self, scopes: tuple[Scope, ...], timeout_s: float) -> bool:
        """Fence every save of this port that is queued or under way, then remove all objects of `scopes`.

        Waits at most `timeout_s`. True: nothing of `scopes` is in the pool, and no earlier save of this port will put
        something there.
        """
        ...

    def close(self, drain_s: float) -> None:
        """Let saves finish for at most `drain_s`, then end everything. Then no memory of the caller is touched."""
        ...
