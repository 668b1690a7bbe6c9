"""What the scheduler's side tells every worker in a step, and what the workers tell it back.

Plain frozen values: vLLM pickles them between processes. The two classes that vLLM wants to be subclasses of its own
wrap them (`metadata.py`), so that this module, and whoever only plans, imports without vLLM.

A job is identified by a number that is never used again, not by its request: request ids come back (vLLM#51637).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GroupBlocks:
    """Blocks of one cache group, in the order of their chain."""

    #: Number of the cache group in vLLM's `KVCacheConfig`.
    group: int
    #: Key bytes of each block (the hash of its last tokens), see `KeyBuilder.keys`.
    keys: tuple[bytes, ...]
    #: Where each block lies in the engine's tensors; never 0, which is vLLM's null block.
    block_ids: tuple[int, ...]
    #: Key of the block before each; None for the first of a chain. Saves only.
    parents: tuple[bytes | None, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """Load blocks for a request that waits for them. Every rank reports `request_id` once, as received or failed."""

    job_id: int
    request_id: str
    #: Digest of the adapter's content, empty for the base model.
    adapter: str
    groups: tuple[GroupBlocks, ...]


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """Save blocks that the scheduler has pinned until every rank has reported `job_id`."""

    job_id: int
    adapter: str
    groups: tuple[GroupBlocks, ...]


@dataclass(frozen=True, slots=True)
class StepOrders:
    """All orders of one step."""

    loads: tuple[LoadOrder, ...] = ()
    saves: tuple[SaveOrder, ...] = ()
    #: Saves up to and including this job are of before a reset: what is not stored yet must not be. 0: none.
    fence: int = 0
    #: `Identity.fingerprint` of the scheduler's side. A worker with another one moves no block. Empty: not compared.
    fingerprint: str = ""
    #: Saves that some rank should have reported long ago. A rank that still works on one goes on; every other reports
    #: it (again: a report counts once for each rank), as dropped where it knows nothing of it.
    overdue: tuple[int, ...] = ()


@dataclass(slots=True)
class SaveReport:
    """What came of one save job, summed over the ranks that have reported it."""

    #: Ranks that have reported: bit ``r`` is set for rank ``r`` of the world. A set and not a count, so that a rank
    #: that reports twice never stands for one that has not, whose memory is still being read.
    rank_bits: int = 0
    stored: int = 0
    existed: int = 0
    dropped: int = 0
    bytes_stored: int = 0
    #: Every rank stored or found every block of the job: the pool has it whole.
    complete: bool = True

    def add(self, other: SaveReport) -> None:
        self.rank_bits |= other.rank_bits
        self.stored += other.stored
        self.existed += other.existed
        self.dropped += other.dropped
        self.bytes_stored += other.bytes_stored
        self.complete = self.complete and other.complete


@dataclass(slots=True)
class RankReport:
    """What the workers report in one step; summed over ranks on its way to the scheduler."""

    saves: dict[int, SaveReport] = field(default_factory=dict)

    def add(self, other: RankReport) -> None:
        for job_id, report in other.saves.items():
            mine = self.saves.get(job_id)
            if mine is None:
                self.saves[job_id] = report
            else:
                mine.add(report)
