"""A worker that computes and moves blocks whenever chance says, and notices every block that holds other bytes than it
should: when a request attends to it, when it is saved, when something is loaded where somebody reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1.outputs import KVConnectorOutput

from pykvpool.hashing import Rank
from pykvpool_connector.vllm.messages import LoadOrder, RankReport, SaveOrder, SaveReport, StepOrders
from pykvpool_connector.vllm.metadata import RankMetadata
from tests.vllm.engine.conversations import Known
from tests.vllm.engine.neighbour import NeighbourLoad

if TYPE_CHECKING:
    from tests.vllm.engine.world import World

#: What stands in a block while a load is half done, or after one has failed.
GARBAGE = "garbage"


@dataclass
class RankJob:
    order: Any
    #: Steps of it that were done.
    begun: bool = False


class FakeRank:
    """A worker: its part of the cache, its loads and saves."""

    def __init__(self, world: World, number: int, rank: Rank) -> None:
        self._world = world
        self.number = number
        self._rank = rank
        identity = world.identity
        self._stripe = identity.stripe(rank)
        self.parts = {rule.group: identity.scope_of("", rule.group, rank).rank for rule in identity.groups}
        #: Block number -> what each of its positions holds.
        self.memory: dict[int, list[object]] = {}
        self.loads: dict[int, RankJob] = {}
        self.saves: dict[int, RankJob] = {}
        self.neighbours: list[NeighbourLoad] = []
        self._fence = 0
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._report = RankReport()

    def start_loads(self, orders: StepOrders, neighbours: list[NeighbourLoad]) -> None:
        for order in orders.loads:
            assert order.job_id not in self.loads
            self.loads[order.job_id] = RankJob(order)
        self.neighbours += neighbours

    def start_saves(self, orders: StepOrders) -> None:
        if orders.fence:
            self._fence = max(self._fence, orders.fence)
            for job_id in [job_id for job_id in self.saves if job_id <= self._fence]:
                self._end_save(job_id, complete=False)
        for job_id in orders.overdue:
            if job_id not in self.saves:
                self._say(job_id, complete=False)
        for order in orders.saves:
            assert order.job_id not in self.saves
            self.saves[order.job_id] = RankJob(order)

    def tick(self) -> None:
        """Some time passes in the background."""
        rng, chances = self._world.rng, self._world.chances
        for job_id, job in list(self.loads.items()):
            if not job.begun or rng.random() < 0.3:
                job.begun = True
                self._scribble(job.order)
            if rng.random() < chances.progress:
                self._end_load(job_id, job.order)
        for load in list(self.neighbours):
            if rng.random() < chances.progress:
                self._end_neighbour(load)
        for job_id in list(self.saves):
            if rng.random() < chances.progress:
                if rng.random() < chances.drop:
                    self._end_save(job_id, complete=False)
                else:
                    self._store(self.saves[job_id].order)
                    self._end_save(job_id, complete=True)

    def collect(self) -> KVConnectorOutput:
        received, self._received = self._received, set()
        failed, self._failed = self._failed, set()
        report, self._report = self._report, RankReport()
        return KVConnectorOutput(
            finished_recving=received,
            failed_recving=failed,
            kv_connector_worker_meta=RankMetadata(report) if report.saves else None,
        )

    def compute(self, known: Known, start: int, number: int, table: tuple[list[int], ...]) -> None:
        """A part of a step: `number` positions of a request, which attend to everything before them."""
        for rule in self._world.identity.groups:
            ids, size = table[rule.group], rule.block_tokens
            first = max(0, start - rule.window_tokens + 1) if rule.kind == "window" else 0
            for position in range(first, start):
                block_id = ids[position // size]
                found = self.memory[block_id][position % size] if block_id in self.memory else None
                right = self.right(rule.group, known.chains[position])
                assert found == right, (
                    f"request {known.request.request_id} attends to other bytes at {position} of group {rule.group}"
                )
            for position in range(start, start + number):
                self.write(rule.group, ids[position // size], position % size, known.chains[position])

    def write(self, group: int, block_id: int, offset: int, chain: object) -> None:
        rule = self._world.identity.groups[group]
        assert block_id, "the null block is written to"
        content = self.memory.setdefault(block_id, [GARBAGE] * rule.block_tokens)
        if len(content) != rule.block_tokens:
            content = self.memory[block_id] = [GARBAGE] * rule.block_tokens
        content[offset] = self.right(group, chain)

    def right(self, group: int, chain: object) -> object:
        return (group, self.parts[group], self._world.weights, chain)

    def _scribble(self, order: LoadOrder) -> None:
        for group in order.groups:
            for block_id in group.block_ids:
                assert block_id, "the null block is loaded into"
                if self._world.rng.random() < 0.5:
                    self.memory[block_id] = [GARBAGE] * self._world.identity.groups[group.group].block_tokens

    def _end_load(self, job_id: int, order: LoadOrder) -> None:
        del self.loads[job_id]
        loaded = self._world.rng.random() >= self._world.chances.load_failure
        for group in order.groups:
            scope = self._world.identity.scope_of(order.adapter, group.group, self._rank)
            for key, block_id in zip(group.keys, group.block_ids, strict=True):
                content = self._world.stored.get((scope, key))
                if content is None or not loaded:
                    loaded = False
                    continue
                self.memory[block_id] = list(content)
        assert order.request_id not in self._received
        self._received.add(order.request_id)
        if not loaded:
            self._failed.add(order.request_id)

    def _end_neighbour(self, load: NeighbourLoad) -> None:
        self.neighbours.remove(load)
        known = self._world.known[load.request_id]
        failed = self._world.rng.random() < self._world.chances.load_failure
        for rule in self._world.identity.groups:
            for position in range(load.start, load.end):
                block_id = load.table[rule.group][position // rule.block_tokens]
                if block_id:
                    self.write(rule.group, block_id, position % rule.block_tokens, known.chains[position])
                    if failed:
                        self.memory[block_id][position % rule.block_tokens] = GARBAGE
        self._received.add(load.request_id)
        if failed:
            self._failed.add(load.request_id)

    def _store(self, order: SaveOrder) -> None:
        for group in order.groups:
            scope = self._world.identity.scope_of(order.adapter, group.group, self._rank)
            assert len(group.keys) == len(group.block_ids) == len(group.parents)
            for key, block_id in zip(group.keys, group.block_ids, strict=True):
                assert block_id, "the null block is saved"
                if not self._stripe.takes(key) or (scope, key) in self._world.stored:
                    continue
                content = tuple(self.memory[block_id])
                right = tuple(
                    self.right(group.group, chain) for chain in self._world.conversations.truth[group.group, key]
                )
                assert content == right, f"job {order.job_id} stores other bytes under the key of block {block_id}"
                self._world.stored[scope, key] = content

    def _end_save(self, job_id: int, *, complete: bool) -> None:
        del self.saves[job_id]
        if self._world.rng.random() >= self._world.chances.lose_report:
            self._say(job_id, complete=complete)

    def _say(self, job_id: int, *, complete: bool) -> None:
        self._report.add(RankReport({job_id: SaveReport(1 << self.number, complete=complete)}))
