"""vLLM's real scheduler with everything else made up: ranks that compute and move blocks, a pool, a way to it.

Nothing here is quick or fair. Ranks finish loads and saves whenever chance says, in any order, also after the request
is gone; the pool forgets blocks at any time, held or not; answers come late, wrong, twice delayed or never.

Every block's content is modelled: a position holds a chain over all tokens up to it, the rank, the group and the age of
the weights. So three things are noticed at the moment they happen: a request that attends to anything but its own past
(wrong tokens), a save that reads anything but what its key names, and a load that writes where somebody else reads.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from pykvpool.hashing import Rank
from pykvpool.host.port import PoolPort
from pykvpool.model.keys import Scope
from pykvpool_connector.vllm.identity import Identity
from tests.vllm.engine.chances import Chances
from tests.vllm.engine.children import Children
from tests.vllm.engine.conversations import Conversations, Known
from tests.vllm.engine.made_up_pool import FakePort
from tests.vllm.engine.made_up_rank import FakeRank

#: Milliseconds of the made-up clock that pass between two steps.
STEP_MS = 20


@dataclass
class Batch:
    """A step between its scheduling and its output."""

    output: Any
    #: Request, first position, positions, whether a token comes of it, block table.
    rows: list[tuple[Known, int, int, bool, tuple[list[int], ...]]] = field(default_factory=list)


class World:
    """A scheduler and what surrounds it.

    Args:
        make_scheduler: builds vLLM's scheduler with our connector; called with a function that makes its port.
    """

    def __init__(
        self,
        make_scheduler: Callable[[Callable[..., PoolPort], Callable[[], int]], Any],
        *,
        identity: Identity,
        tensor: int,
        pipeline: int,
        in_flight: int,
        seed: int,
        hasher: Callable[[bytes], Any],
        chances: Chances,
    ) -> None:
        self.rng = random.Random(seed)
        self.chances = chances
        self.identity = identity
        #: (scope, key) -> content.
        self.stored: dict[tuple[Scope, bytes], tuple[object, ...]] = {}
        #: Age of the weights.
        self.weights = 0
        self.clock = 0
        self.port = FakePort(self)
        self.scheduler = make_scheduler(lambda *_: self.port, lambda: self.clock)
        self.connector = self.scheduler.get_kv_connector()
        self._children = Children(self.connector, self._offer)
        self.connector = self._children.ours
        #: Requests for which the neighbour's load failed, or that it has no wish to load.
        self._not_offered: set[str] = set()
        self.ranks = [
            FakeRank(self, number, Rank(tensor=number % tensor, pipeline=number // tensor))
            for number in range(tensor * pipeline)
        ]
        self._aggregator = KVOutputAggregator(len(self.ranks))
        self._in_flight = in_flight
        self._batches: deque[Batch] = deque()
        self.conversations = Conversations(self.rng, identity, hasher)
        self.known: dict[str, Known] = {}
        self.finished: dict[str, Known] = {}
        self._numbers = 0
        self.external_hits = 0
        self.preemptions = 0
        self.events: list[Any] = []
        self.collect_events()

    # -- requests ----------------------------------------------------------------------------------------------------

    def add(self, tokens: list[int] | None = None, output: int | None = None, **params: Any) -> Known:
        rng = self.rng
        if tokens is None:
            tokens = self.conversations.draw_prompt(self.finished.values())
        self._numbers += 1
        # vLLM knows a step's outputs by name, so a name comes back only when no step of its first bearer is left.
        taken = {row[0].request.request_id for batch in self._batches for row in batch.rows} | self.known.keys()
        name = rng.choice([name for name in ("a", "b", "c", str(self._numbers)) if name not in taken])
        known = self.conversations.request(name, tokens, rng.randint(1, 60) if output is None else output, **params)
        self.known[name] = known
        self.scheduler.add_request(known.request)
        return known

    def abort(self, name: str) -> None:
        known = self.known[name]
        known.aborted = True
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self._retire()

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One turn of the engine's loop: schedule, and take an output where the pipeline is full."""
        self.tick()
        output = self.scheduler.schedule()
        batch = Batch(output)
        self.preemptions += len(output.preempted_req_ids or ())
        for name, number in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            start = request.num_computed_tokens - number
            table = self.scheduler.kv_cache_manager.get_block_ids(name)
            batch.rows.append((self.known[name], start, number, not request.is_prefill_chunk, table))
        self._batches.append(batch)
        while len(self._batches) >= self._in_flight:
            self._finish_batch()

    def drain(self) -> None:
        while self._batches:
            self._finish_batch()

    def tick(self) -> None:
        self.clock += STEP_MS
        self.port.tick()
        for rank in self.ranks:
            rank.tick()
        for scope, key in list(self.stored):
            if self.rng.random() < self.chances.forget:
                del self.stored[scope, key]
                self.port.forgotten(scope, key)

    def run(self, steps: int) -> None:
        """Step until nothing is left to do; what is still there after so many steps is stuck."""
        for _ in range(steps):
            if not self.scheduler.has_requests() and not self._batches:
                return
            self.step()
            if not self.scheduler.has_requests():
                self.drain()
        raise AssertionError(f"the engine is not done after {steps} steps: {self.state()}")

    def state(self) -> dict[str, object]:
        side = self.side
        return {
            "requests": {name: str(known.request.status) for name, known in self.known.items()},
            "tracked": side.requests, "loading": side.loading, "lookups": side.open_lookups,
            "pinned": side.pinned, "jobs": side.save_jobs, "port": self.port.open,
        }  # fmt: skip

    @property
    def side(self) -> Any:
        return self.connector._scheduler

    def new_weights(self) -> None:
        """What a trainer does after an update: everything computed before is void."""
        self.drain()
        if self.side.loading or self.side.pinned or self.scheduler.kv_holding_waiting:
            self.scheduler.reset_connector_cache()  # not while blocks are in use; it must do no harm
        else:
            # Whether or not the pool has confirmed it: not every trainer looks.
            self.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
            self.weights += 1

    def check_nothing_left(self) -> None:
        side, pool = self.side, self.scheduler.kv_cache_manager.block_pool
        assert (side.requests, side.loading, side.open_lookups) == (0, 0, 0), self.state()
        assert (side.pinned, side.save_jobs) == (0, 0), self.state()
        assert self.port.open == 0, self.state()
        assert not self.scheduler.requests
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
        assert all(block.ref_cnt == 0 for block in pool.blocks if not block.is_null)
        assert not any(rank.loads or rank.saves or rank.neighbours for rank in self.ranks)
        assert not self._aggregator._recv_remaining_count
        assert self.scheduler.reset_prefix_cache()

    def collect_events(self) -> None:
        """Listen where the engine would publish."""
        publisher = self.scheduler.kv_event_publisher
        publisher.publish = lambda batch: self.events.extend(batch.events)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _finish_batch(self) -> None:
        batch = self._batches.popleft()
        orders, neighbours = self._children.orders_in(batch.output.kv_connector_metadata)
        early = self.rng.random() < 0.5
        for rank in self.ranks:
            if early:
                rank.start_loads(orders, neighbours)
                rank.tick()
            for copy in batch.output.kv_cache_block_copies or ():
                rank.memory[copy.dst_block_id] = list(rank.memory[copy.src_block_id])
            for known, start, number, _, table in batch.rows:
                rank.compute(known, start, number, table)
            if not early:
                rank.start_loads(orders, neighbours)
            rank.start_saves(orders)
        self.port.tick()
        outputs = [self._output(batch, rank) for rank in self.ranks]
        output = self._aggregator.aggregate(outputs) if len(outputs) > 1 else outputs[0]
        self.scheduler.update_from_output(batch.output, output)
        self._retire()

    def _offer(self, request: Request, local: int) -> int | None:
        """What the neighbour has of a request. It makes up its mind once."""
        name = request.request_id
        unit = self.side._hits.unit
        most = self.side._hits.furthest(request.num_tokens) - local
        if name in self._not_offered or most <= 0:
            return 0
        if self.rng.random() < 0.2:
            return None
        self._not_offered.add(name)
        return self.rng.randrange(unit, most + 1, unit) if self.rng.random() < self.chances.neighbour else 0

    def _output(self, batch: Batch, rank: FakeRank) -> ModelRunnerOutput:
        names = [known.request.request_id for known, *_ in batch.rows]
        sampled = [[known.tokens[start + number]] if says else [] for known, start, number, says, _ in batch.rows]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=self._children.wrapped(rank.collect()),
        )

    def _retire(self) -> None:
        for name, known in list(self.known.items()):
            if known.request.is_finished() and name not in self.scheduler.requests:
                del self.known[name]
                self._not_offered.discard(name)
                self.finished[name] = known
                if not known.aborted and known.request.status is RequestStatus.FINISHED_LENGTH_CAPPED:
                    said = list(known.request.output_token_ids)
                    assert said == known.tokens[known.request.num_prompt_tokens :][: len(said)]
