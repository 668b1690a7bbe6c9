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
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector, MultiKVConnectorWorkerMetadata
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from pykvpool.hashing import Rank
from pykvpool.host.port import Answer, Found, Lapsed, Lookup, PoolPort, Removed
from pykvpool.model.keys import Scope
from pykvpool_connector.vllm.identity import Identity
from pykvpool_connector.vllm.messages import LoadOrder, RankReport, SaveOrder, SaveReport, StepOrders
from pykvpool_connector.vllm.metadata import RankMetadata, StepMetadata
from tests.vllm.engine.models import VOCABULARY
from tests.vllm.engine.neighbour import NeighbourConnector, NeighbourLoad

#: What stands in a block while a load is half done, or after one has failed.
GARBAGE = "garbage"
#: Milliseconds of the made-up clock that pass between two steps.
STEP_MS = 20


@dataclass(frozen=True)
class Chances:
    """How often things go wrong, per occasion."""

    #: A lookup's answer comes now.
    answer: float = 0.5
    #: A lookup is never answered, or with an error.
    no_answer: float = 0.05
    lookup_error: float = 0.05
    #: A hold lapses, in each step.
    lapse: float = 0.02
    #: A stored block is forgotten, in each step.
    forget: float = 0.001
    #: A job under way on a rank ends now.
    progress: float = 0.4
    #: A save is dropped, a load fails though everything is there, a save's report gets lost.
    drop: float = 0.03
    load_failure: float = 0.1
    lose_report: float = 0.03
    #: A connector beside ours offers to load something; it fails as often as ours.
    neighbour: float = 0.4
    #: A request is aborted, in each step.
    abort: float = 0.02
    #: Everything is reset, in each step.
    reset: float = 0.01


CALM = Chances(1.0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0, 0, 0)


class FakePort:
    """The scheduler's way to the pool."""

    placement = "a test"
    connected = True

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: dict[int, Lookup] = {}
        #: Those of them that will never be answered.
        self._mute: set[int] = set()
        #: Lookups that hold something, and those whose hold has lapsed without being released.
        self.held: set[int] = set()
        self.lapsed: set[int] = set()
        self._events: list[Any] = []
        self._watched: set[Scope] = set()
        self.closed = False
        self.asked = 0

    @property
    def open(self) -> int:
        """Questions and holds of which nobody has let go."""
        return len(self._asked) + len(self.held)

    def lookup(self, lookup: Lookup) -> None:
        self.asked += 1
        assert lookup.lookup_id not in self._asked
        self._asked[lookup.lookup_id] = lookup
        if self._world.rng.random() < self._world.chances.no_answer:
            self._mute.add(lookup.lookup_id)

    def release(self, lookup_id: int) -> None:
        unread = self._unread(lookup_id)
        known = unread or lookup_id in self._asked or lookup_id in self.held or lookup_id in self.lapsed
        assert known, f"the lookup {lookup_id} is released twice, or was never asked"
        self._asked.pop(lookup_id, None)
        self.held.discard(lookup_id)
        self.lapsed.discard(lookup_id)
        self._events = [event for event in self._events if getattr(event, "lookup_id", None) != lookup_id]

    def poll(self) -> list[Any]:
        events, self._events = self._events, []
        return events

    def save(self, job: Any) -> None:
        raise AssertionError("the scheduler's side moves no blocks")

    load = save

    def reset(self, scopes: tuple[Scope, ...], timeout_s: float) -> bool:
        if self._world.rng.random() < self._world.chances.no_answer:
            return False
        for scope, key in list(self._world.stored):
            if scope in scopes:
                del self._world.stored[scope, key]
        return True

    def close(self, drain_s: float) -> None:
        self.closed = True

    def tick(self) -> None:
        rng, chances = self._world.rng, self._world.chances
        for lookup_id, lookup in list(self._asked.items()):
            if lookup_id in self._mute or rng.random() >= chances.answer:
                continue
            del self._asked[lookup_id]
            if rng.random() < chances.lookup_error:
                self._events.append(Answer(lookup_id, error="no pool", reason="Unreachable"))
                continue
            self.held.add(lookup_id)
            self._events.append(Answer(lookup_id, tuple(self._find(each) for each in lookup.questions)))
        for lookup_id in sorted(self.held):
            if rng.random() < chances.lapse and not self._unread(lookup_id):
                self.held.discard(lookup_id)
                self.lapsed.add(lookup_id)
                self._events.append(Lapsed(lookup_id))

    def watch(self, scopes: tuple[Scope, ...]) -> None:
        self._watched.update(scopes)

    def forgotten(self, scope: Scope, key: bytes) -> None:
        if scope in self._watched:
            self._events.append(Removed(scope, (key,)))

    def _unread(self, lookup_id: int) -> bool:
        return any(isinstance(event, Answer) and event.lookup_id == lookup_id for event in self._events)

    def _find(self, question: Any) -> Found:
        there = [all((scope, key) in self._world.stored for scope in question.scopes) for key in question.keys]
        count = next((at for at, here in enumerate(there) if not here), len(there))
        return Found(count, bytes(there) if question.presence else b"")


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
                right = tuple(self.right(group.group, chain) for chain in self._world.truth[group.group, key])
                assert content == right, f"job {order.job_id} stores other bytes under the key of block {block_id}"
                self._world.stored[scope, key] = content

    def _end_save(self, job_id: int, *, complete: bool) -> None:
        del self.saves[job_id]
        if self._world.rng.random() >= self._world.chances.lose_report:
            self._say(job_id, complete=complete)

    def _say(self, job_id: int, *, complete: bool) -> None:
        self._report.add(RankReport({job_id: SaveReport(1 << self.number, complete=complete)}))


@dataclass
class Known:
    """A request and the tokens that it is bound to have."""

    request: Request
    tokens: list[int]
    #: Chain over the tokens up to each position.
    chains: list[int]
    aborted: bool = False


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
        side_of: finds our scheduler's side in it.
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
        #: (group, key) -> chains of the block's positions.
        self.truth: dict[tuple[int, bytes], tuple[int, ...]] = {}
        #: Age of the weights.
        self.weights = 0
        self.clock = 0
        self.port = FakePort(self)
        self.scheduler = make_scheduler(lambda *_: self.port, lambda: self.clock)
        self.connector = self.scheduler.get_kv_connector()
        #: Our place among MultiConnector's children, and the other child.
        self._place: int | None = None
        if isinstance(self.connector, MultiConnector):
            children = self.connector.sub_connectors
            self._place = int(isinstance(children[0], NeighbourConnector))
            children[1 - self._place].offers = self._offer
            self.connector = children[self._place]
        #: Requests for which the neighbour's load failed, or that it has no wish to load.
        self._not_offered: set[str] = set()
        self.ranks = [
            FakeRank(self, number, Rank(tensor=number % tensor, pipeline=number // tensor))
            for number in range(tensor * pipeline)
        ]
        self._aggregator = KVOutputAggregator(len(self.ranks))
        self._in_flight = in_flight
        self._batches: deque[Batch] = deque()
        self._hasher = hasher
        self.known: dict[str, Known] = {}
        self.finished: dict[str, Known] = {}
        #: Beginnings that prompts share.
        self._families = [self._draw_tokens(200) for _ in range(2)]
        self._numbers = 0
        self.external_hits = 0
        self.preemptions = 0
        self.events: list[Any] = []
        self.collect_events()

    # -- requests ----------------------------------------------------------------------------------------------------

    def add(self, tokens: list[int] | None = None, output: int | None = None, **params: Any) -> Known:
        rng = self.rng
        if tokens is None:
            whole = [known.tokens for known in self.finished.values() if not known.aborted]
            base = rng.choice(whole) if whole and rng.random() < 0.5 else rng.choice(self._families)
            tokens = base[: rng.randint(1, min(len(base), 260))]
            if rng.random() < 0.7:
                tokens = tokens + self._draw_tokens(rng.randint(1, 60))
        output = rng.randint(1, 60) if output is None else output
        self._numbers += 1
        sampling = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0, **params)
        sampling.update_from_generation_config({}, 2)
        # vLLM knows a step's outputs by name, so a name comes back only when no step of its first bearer is left.
        taken = {row[0].request.request_id for batch in self._batches for row in batch.rows} | self.known.keys()
        name = rng.choice([name for name in ("a", "b", "c", str(self._numbers)) if name not in taken])
        request = Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=sampling,
            pooling_params=None,
            block_hasher=self._hash_request,
        )
        # What it will say depends on its prompt alone, so that equal prompts have equal conversations.
        chain = random.Random(repr(tokens))
        known = Known(request, list(tokens) + [chain.randrange(4, VOCABULARY) for _ in range(output + 1)], [])
        chained = 0
        for token in known.tokens:
            chained = hash((chained, token))
            known.chains.append(chained)
        self._learn(known)
        self.known[name] = known
        self.scheduler.add_request(request)
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
        elif self.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True):
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
        orders, neighbours = self._orders_in(batch.output.kv_connector_metadata)
        early = self.rng.random() < 0.5
        for rank in self.ranks:
            if early:
                rank.start_loads(orders, neighbours)
                rank.tick()
            for copy in batch.output.kv_cache_block_copies or ():
                rank.memory[copy.dst_block_id] = list(rank.memory[copy.src_block_id])
            for known, start, number, _, table in batch.rows:
                self._compute(rank, known, start, number, table)
            if not early:
                rank.start_loads(orders, neighbours)
            rank.start_saves(orders)
        self.port.tick()
        outputs = [self._output(batch, rank) for rank in self.ranks]
        output = self._aggregator.aggregate(outputs) if len(outputs) > 1 else outputs[0]
        self.scheduler.update_from_output(batch.output, output)
        self._retire()

    def _orders_in(self, metadata: Any) -> tuple[StepOrders, list[NeighbourLoad]]:
        neighbours: list[NeighbourLoad] = []
        if self._place is not None:
            neighbours = metadata.metadata[1 - self._place].loads
            metadata = metadata.metadata[self._place]
        assert isinstance(metadata, StepMetadata)
        return metadata.orders, neighbours

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

    def _compute(self, rank: FakeRank, known: Known, start: int, number: int, table: tuple[list[int], ...]) -> None:
        for rule in self.identity.groups:
            ids, size = table[rule.group], rule.block_tokens
            first = max(0, start - rule.window_tokens + 1) if rule.kind == "window" else 0
            for position in range(first, start):
                block_id = ids[position // size]
                found = rank.memory[block_id][position % size] if block_id in rank.memory else None
                right = rank.right(rule.group, known.chains[position])
                assert found == right, (
                    f"request {known.request.request_id} attends to other bytes at {position} of group {rule.group}"
                )
            for position in range(start, start + number):
                rank.write(rule.group, ids[position // size], position % size, known.chains[position])

    def _output(self, batch: Batch, rank: FakeRank) -> ModelRunnerOutput:
        names = [known.request.request_id for known, *_ in batch.rows]
        sampled = [[known.tokens[start + number]] if says else [] for known, start, number, says, _ in batch.rows]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=self._wrapped(rank.collect()),
        )

    def _wrapped(self, output: KVConnectorOutput) -> KVConnectorOutput:
        ours = output.kv_connector_worker_meta
        if self._place is not None and ours is not None:
            children = (ours, None) if self._place == 0 else (None, ours)
            output.kv_connector_worker_meta = MultiKVConnectorWorkerMetadata(children)
        return output

    def _retire(self) -> None:
        for name, known in list(self.known.items()):
            if known.request.is_finished() and name not in self.scheduler.requests:
                del self.known[name]
                self._not_offered.discard(name)
                self.finished[name] = known
                if not known.aborted and known.request.status is RequestStatus.FINISHED_LENGTH_CAPPED:
                    said = list(known.request.output_token_ids)
                    assert said == known.tokens[known.request.num_prompt_tokens :][: len(said)]

    def _draw_tokens(self, number: int) -> list[int]:
        return [self.rng.randrange(4, VOCABULARY) for _ in range(number)]

    def _hash_request(self, request: Request) -> list[Any]:
        return get_request_block_hasher(self.identity.hash_block_tokens, self._hasher)(request)

    def _learn(self, known: Known) -> None:
        """Which chains stand behind which key, over all tokens that the request may ever have."""
        sampling = SamplingParams(max_tokens=1)
        whole = Request("truth", known.tokens, sampling, None, block_hasher=self._hash_request)
        for rule in self.identity.groups:
            size = rule.block_tokens
            for at, key in enumerate(self.identity.keys(whole.block_hashes, rule.group)):
                self.truth[rule.group, key] = tuple(known.chains[at * size : (at + 1) * size])
