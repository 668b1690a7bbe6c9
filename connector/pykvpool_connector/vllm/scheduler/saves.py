"""Which blocks to save, and when: those whose bytes are certain and that the pool does not have.

A block is certain once the step that computed it has come back, so that neither a rejected draft token nor a failed
load of another connector can have left something else in it. Requests are looked at in the steps they run in and once
more when they end; their blocks are read from vLLM's table at that moment. A table's blocks that have left a sliding
window are gone from it, but as long as the engine's own prefix cache has them they can be saved from there: a hit may
end anywhere, also a window before the end of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pykvpool_connector.vllm.cache_groups import GroupRule
from pykvpool_connector.vllm.identity import Identity
from pykvpool_connector.vllm.messages import GroupBlocks, SaveOrder
from pykvpool_connector.vllm.scheduler.announce import Announcer
from pykvpool_connector.vllm.scheduler.engine import Block, EngineBlocks
from pykvpool_connector.vllm.scheduler.pins import PinnedJob, Pins, job_deadline
from pykvpool_connector.vllm.scheduler.policy import Policy
from pykvpool_connector.vllm.scheduler.requests import Tracked
from pykvpool_connector.vllm.tally import Tally

#: A job's blocks stay pinned until all of it is done, so jobs are small beside the pinned share.
BLOCKS_PER_JOB = 256
#: Ordered in one step, so that a long prefix that only the engine has delays no step by more than a millisecond or two.
#: The rest waits for the next steps, in which its request still holds it.
BLOCKS_PER_STEP = 1024
#: Why blocks were not handed to a save job: as many as allowed were pinned; a reset came first.
OVER_RATIO = "pinned"
FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A block to save."""

    rule: GroupRule
    #: Which block of the request's.
    index: int
    key: bytes
    parent: bytes | None
    block: Block


class Saves:
    """Plans save jobs and queues their orders for the next step."""

    def __init__(
        self,
        identity: Identity,
        policy: Policy,
        blocks: EngineBlocks,
        pins: Pins,
        announcer: Announcer,
        tally: Tally,
        *,
        next_job: Callable[[], int],
        now: Callable[[], int],
    ) -> None:
        self._identity = identity
        self._policy = policy
        self._blocks = blocks
        self._pins = pins
        self._announcer = announcer
        self._tally = tally
        self._next_job = next_job
        self._now = now
        #: Ordered, to go out with the next step.
        self._queue: list[SaveOrder] = []
        #: Blocks that may still be ordered in this step.
        self._left = BLOCKS_PER_STEP

    @property
    def queued(self) -> int:
        return len(self._queue)

    def plan(self, tracked: Tracked, *, last: bool = False) -> None:
        """Order to save what is certain of a request and not saved yet.

        Args:
            tracked: a request that has run; its adapter is known.
            last: it ends now. What may not be pinned waits for a later step otherwise; now it is dropped.
        """
        ends = self._ends(tracked)
        if all(start >= end for start, end in zip(tracked.saved, ends, strict=True)):
            return
        room = self._pins.room if last else min(self._pins.room, self._left)
        if not room and not last:
            return
        table = self._blocks.table(tracked.request.request_id)
        chosen: list[Candidate] = []
        for place, (rule, end) in enumerate(zip(self._identity.groups, ends, strict=True)):
            for candidate in self._candidates(tracked, place, rule, table[rule.group], end):
                if len(chosen) >= room:
                    if not last:
                        tracked.saved[place] = candidate.index
                        break
                    self._tally.count("unsaved_blocks", label=OVER_RATIO)
                    continue
                chosen.append(candidate)
            else:
                tracked.saved[place] = max(end, tracked.saved[place])
        self._left = max(0, self._left - len(chosen))
        for at in range(0, len(chosen), BLOCKS_PER_JOB):
            self._order(tracked, chosen[at : at + BLOCKS_PER_JOB])

    def take(self) -> tuple[SaveOrder, ...]:
        """The queued orders, for the step that is being built."""
        orders = tuple(self._queue)
        self._queue.clear()
        self._left = BLOCKS_PER_STEP
        return orders

    def drop_queued(self) -> None:
        """Orders that no worker has seen are not sent at all."""
        for order in self._queue:
            self._tally.count("unsaved_blocks", len(self._pins.unpin(order.job_id).blocks), FENCED)
        self._queue.clear()

    def _ends(self, tracked: Tracked) -> list[int]:
        """Blocks of each group whose bytes and hashes are certain."""
        request = tracked.request
        tokens = request.num_computed_tokens - request.num_in_flight_tokens
        if not self._policy.save_decode_cache:
            tokens = min(tokens, request.num_prompt_tokens)
        tokens = max(0, min(tokens, len(request.block_hashes) * self._identity.hash_block_tokens))
        return [tokens // rule.block_tokens for rule in self._identity.groups]

    def _candidates(
        self, tracked: Tracked, place: int, rule: GroupRule, table: Sequence[Block], end: int
    ) -> Iterator[Candidate]:
        start = tracked.saved[place]
        if start >= end:
            return
        stride = rule.hash_stride
        # One block more in front, for the first one's parent.
        ahead = 1 if start else 0
        hashes = tracked.request.block_hashes[(start - ahead) * stride : end * stride]
        keys = self._identity.keys(hashes, rule.group)
        present = tracked.present[place]
        known = keys[0] if ahead else None
        for index, block, key in zip(range(start, end), table[start:end], keys[ahead:], strict=False):
            parent, known = known, None
            if rule.kind == "full":
                known = key
            if index < len(present) and present[index]:
                known = key
                continue
            if block.is_null:
                found = self._blocks.cached(key, rule.group)
                if found is None or found.is_null:
                    continue
                block = found
            known = key
            if not self._pins.saving((tracked.adapter or "", rule.group, key)):
                yield Candidate(rule, index, key, parent, block)

    def _order(self, tracked: Tracked, chosen: Sequence[Candidate]) -> None:
        adapter = tracked.adapter or ""
        groups: list[GroupBlocks] = []
        notices: list[object] = []
        for rule, found in groupby(chosen, key=lambda candidate: candidate.rule):
            members = list(found)
            groups.append(
                GroupBlocks(
                    rule.group,
                    keys=tuple(each.key for each in members),
                    block_ids=tuple(each.block.block_id for each in members),
                    parents=tuple(each.parent for each in members),
                )
            )
            notices += self._announcer.describe(tracked.request, rule, [each.index for each in members])
        job_id = self._next_job()
        self._pins.pin(
            PinnedJob(
                job_id,
                blocks=tuple(each.block for each in chosen),
                names=tuple((adapter, each.rule.group, each.key) for each in chosen),
                deadline=job_deadline(self._now(), self._policy.save_timeout_ms),
                notices=tuple(notices),
            )
        )
        self._queue.append(SaveOrder(job_id, adapter, tuple(groups)))
