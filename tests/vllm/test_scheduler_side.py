"""The scheduler's side, hook by hook: what it asks, offers, orders, holds, and lets go of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pykvpool.errors import NotReady, NotSupported, Unavailable
from pykvpool.host.port import Answer, Found, Lapsed, Removed
from pykvpool_connector.vllm.identity import Identity
from pykvpool_connector.vllm.messages import RankReport, SaveReport, StepOrders
from pykvpool_connector.vllm.scheduler.pins import OVERDUE_AGAIN_MS, OVERDUE_GRACE_MS
from pykvpool_connector.vllm.scheduler.policy import Policy
from pykvpool_connector.vllm.scheduler.resets import CLEAR_AGAIN_MS
from pykvpool_connector.vllm.scheduler.saves import BLOCKS_PER_JOB, BLOCKS_PER_STEP
from pykvpool_connector.vllm.scheduler.side import LATER, NOTHING, SchedulerSide
from tests.vllm.engine_fakes import TOKENS, FakeBlocks, FakePlan, FakeRequest
from tests.vllm.fakes import FullAttentionSpec, SlidingWindowSpec, group, identity
from tests.vllm.ports import HandPort


class Port(HandPort):
    """Notes releases and resets."""

    def __init__(self) -> None:
        super().__init__()
        self.released: list[int] = []
        self.resets: list[tuple[Any, ...]] = []
        self.resets_well = True

    def release(self, lookup_id: int) -> None:
        assert lookup_id not in self.released, "released twice"
        self.released.append(lookup_id)
        super().release(lookup_id)

    def reset(self, scopes: tuple[Any, ...], timeout_s: float) -> bool:
        self._check()
        self.resets.append(scopes)
        return self.resets_well


class Bench:
    """A side with an engine and a pool of the test's own."""

    def __init__(self, who: Identity | None = None, events: Any = None, total: int = 1000, **policy: Any) -> None:
        self.identity = who or identity(group(FullAttentionSpec()))
        self.port = Port()
        self.blocks = FakeBlocks(total)
        self.clock = 0
        self.side = SchedulerSide(self.identity, Policy(**policy), self.port, lambda: self.clock, events=events)
        self.side.bind(self.blocks)

    def new(self, name: str = "r", tokens: int = 100, **fields: Any) -> FakeRequest:
        request = FakeRequest(name, tokens, **fields)
        self.side.new(request)
        return request

    def answer(self, *counts: int, presence: tuple[bytes, ...] = (), lookup: int | None = None) -> int:
        """The last lookup's answer."""
        number = max(self.port.lookups) if lookup is None else lookup
        found = [Found(count, presence[at] if presence else b"") for at, count in enumerate(counts)]
        self.port.end(Answer(number, tuple(found)))
        return number

    def run(self, request: FakeRequest, computed: int, *ids: int | range) -> StepOrders:
        """One step with `request`, which has so many tokens computed in these blocks, or these of each group."""
        if ids:
            groups = ids if isinstance(ids[0], range) else (ids,)
            self.blocks.give(request.request_id, *groups)
        request.num_computed_tokens = computed
        return self.side.build(FakePlan((request.request_id,)))

    def report(self, *jobs: int, ranks: int = 1, **fields: Any) -> None:
        self.side.reported(RankReport({job: SaveReport((1 << ranks) - 1, **fields) for job in jobs}), (), ())

    def nothing_left(self) -> bool:
        side = self.side
        return not (side.requests or side.loading or side.open_lookups or side.pinned or side.save_jobs)


def uneven() -> Identity:
    """Blocks of 32 tokens in one group and of 16 in the other; a hash for every 16."""
    return identity(
        group(FullAttentionSpec(block_size=32), "full"), group(SlidingWindowSpec(sliding_window=65), "window")
    )


# -- lookups ---------------------------------------------------------------------------------------------------------


def test_a_request_is_looked_up_once_however_often_it_is_asked_about():
    bench = Bench()
    request = bench.new()
    assert len(bench.port.lookups) == 1
    assert [bench.side.matched(request, 0) for _ in range(50)] == [LATER] * 50
    bench.answer(4)
    assert [bench.side.matched(request, 0) for _ in range(50)] == [(64, True)] * 50
    assert len(bench.port.lookups) == 1


def test_a_hit_depends_on_what_the_engine_has_at_that_moment():
    bench = Bench()
    request = bench.new()
    bench.answer(4)
    assert bench.side.matched(request, 0) == (64, True)
    assert bench.side.matched(request, 32) == (32, True)
    assert bench.side.matched(request, 64) == NOTHING


def test_a_miss_holds_nothing():
    bench = Bench()
    request = bench.new()
    number = bench.answer(0)
    assert bench.side.matched(request, 0) == NOTHING
    assert bench.port.released == [number]


def test_an_answer_that_does_not_come_is_waited_for_a_bounded_time():
    bench = Bench(lookup_timeout_ms=100)
    request = bench.new()
    bench.clock = 99
    assert bench.side.matched(request, 0) == LATER
    bench.clock = 10_000
    assert bench.side.matched(request, 0) == NOTHING
    assert bench.port.released == [1]


def test_a_hold_that_lapsed_is_asked_for_again_a_few_times():
    bench = Bench()
    request = bench.new()
    for number in (1, 2, 3, 4):
        assert bench.side.matched(request, 0) == LATER
        bench.answer(4, lookup=number)
        assert bench.side.matched(request, 0) == (64, True)
        bench.port.end(Lapsed(number))
    assert bench.side.matched(request, 0) == NOTHING
    assert bench.port.released == []
    bench.side.finished(request)
    assert bench.nothing_left()


def test_what_another_connector_brings_is_not_looked_up():
    bench = Bench()
    request = bench.new(kv_transfer_params={"do_remote_prefill": True})
    assert bench.side.matched(request, 0) == NOTHING
    assert not bench.port.lookups


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        ({"loads": False}, {}),
        ({}, {"skip_reading_prefix_cache": True}),
        ({}, {"tokens": TOKENS}),
        ({"min_load_tokens": 97}, {}),
    ],
    ids=["a producer", "prompt logprobs", "no whole block before the last token", "less than pays"],
)
def test_what_cannot_hit_is_not_looked_up(policy, fields):
    bench = Bench(**policy)
    assert bench.side.matched(bench.new(**fields), 0) == NOTHING
    assert not bench.port.lookups


def test_a_hit_that_spares_too_little_is_computed():
    bench = Bench(min_load_tokens=40)
    request = bench.new()
    bench.answer(4)
    assert bench.side.matched(request, 16) == (48, True)
    assert bench.side.matched(request, 32) == NOTHING


@pytest.mark.parametrize("answered", [False, True])
def test_a_request_that_is_never_scheduled_lets_go_of_its_lookup(answered):
    bench = Bench()
    request = bench.new()
    if answered:
        bench.answer(4)
        assert bench.side.matched(request, 0) == (64, True)
    bench.side.finished(request)
    assert bench.port.released == [1]
    assert bench.nothing_left()


def test_an_answer_that_crosses_its_release_is_released():
    bench = Bench()
    request = bench.new()
    bench.side.finished(request)
    assert bench.port.released == [1]
    bench.port.released.clear()
    bench.port.end(Answer(1, (Found(4),)))
    bench.side.build(FakePlan())
    assert bench.port.released == [1]


def test_a_hit_that_vllm_does_not_take_is_released():
    """Another connector was chosen, or the engine found the blocks itself meanwhile."""
    bench = Bench()
    request = bench.new()
    bench.answer(4)
    bench.side.matched(request, 0)
    bench.side.allocated(request, bench.blocks.give("r", range(1, 8)), 0)
    assert bench.port.released == [1]


def test_a_broken_port_costs_hits_not_the_engine(caplog):
    bench = Bench()
    bench.port.broken = Unavailable("no pool")
    request = bench.new()
    assert bench.side.matched(request, 0) == NOTHING
    bench.port.broken = RuntimeError("a bug")
    assert not bench.side.reset()
    bench.run(request, 32, 1, 2, 3)
    bench.side.finished(request)
    bench.side.close()
    assert bench.nothing_left()
    assert "no pool" in caplog.text


def test_an_adapter_that_is_being_read_is_waited_for_a_bounded_time(monkeypatch):
    bench = Bench(lookup_timeout_ms=100)
    answers: list[Any] = [NotReady("reading"), NotReady("reading"), "d" * 32]

    def digest(lora: Any) -> str:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(bench.identity, "adapter_digest", digest)
    request = bench.new()
    assert bench.side.matched(request, 0) == LATER
    assert bench.side.matched(request, 0) == LATER
    assert bench.port.lookups[1].questions[0].scopes == bench.identity.scopes("d" * 32, 0)
    answers[:] = [NotReady("reading")]
    late = bench.new("late")
    assert bench.side.matched(late, 0) == LATER
    bench.clock = 100
    assert bench.side.matched(late, 0) == NOTHING


def test_an_adapter_that_cannot_be_known_bypasses_the_pool(monkeypatch, caplog):
    bench = Bench()

    def digest(lora: Any) -> str:
        raise NotSupported("no files")

    monkeypatch.setattr(bench.identity, "adapter_digest", digest)
    request = bench.new()
    assert bench.side.matched(request, 0) == NOTHING
    assert not bench.run(request, 96, *range(1, 8)).saves
    bench.side.finished(request)
    assert bench.nothing_left()
    assert not bench.port.lookups
    for number in range(50):
        assert bench.side.matched(bench.new(str(number)), 0) == NOTHING
    assert caplog.text.count("no files") == 1, "a line for each request"


# -- loads -----------------------------------------------------------------------------------------------------------


def taken(bench: Bench, request: FakeRequest, *, local: int = 0, blocks: int = 4) -> StepOrders:
    """A hit of so many blocks is offered and taken."""
    bench.answer(blocks)
    tokens, between_steps = bench.side.matched(request, local)
    assert between_steps
    assert tokens == blocks * TOKENS - local
    bench.side.allocated(request, bench.blocks.give(request.request_id, range(11, 11 + blocks)), tokens)
    request.num_computed_tokens = blocks * TOKENS
    return bench.side.build(FakePlan())


def test_a_load_covers_what_the_engine_lacks():
    bench = Bench()
    request = bench.new()
    [order] = taken(bench, request, local=32).loads
    [blocks] = order.groups
    assert (order.request_id, blocks.group, blocks.block_ids) == ("r", 0, (13, 14))
    assert blocks.keys == tuple(request.block_hashes[2:4])


def test_a_lease_passes_to_the_load_and_ends_with_it():
    bench = Bench()
    request = bench.new()
    taken(bench, request)
    bench.port.end(Lapsed(1))
    bench.side.build(FakePlan())
    assert list(bench.port.lookups) == [1]
    assert bench.port.released == []
    bench.side.reported(None, {"r"}, ())
    assert bench.port.released == [1]
    assert bench.side.loading == 0


def test_a_load_goes_on_after_its_request_was_aborted():
    bench = Bench()
    request = bench.new()
    taken(bench, request)
    bench.side.finished(request)
    assert bench.side.loading == 1
    assert bench.side.pinned == 0
    assert bench.port.released == []
    bench.side.reported(None, {"r"}, {"r"})
    assert bench.port.released == [1]
    assert bench.nothing_left()


def test_blocks_that_are_being_loaded_are_not_saved_when_the_request_ends():
    """vLLM counts them as computed from the moment they are allocated."""
    bench = Bench()
    request = bench.new()
    taken(bench, request)
    bench.side.finished(request)
    assert not bench.side.build(FakePlan()).saves


def test_after_a_failed_load_no_hit_is_offered_again():
    """vLLM PR#55297: answered with "hit" again, for ever."""
    bench = Bench()
    request = bench.new()
    taken(bench, request)
    bench.side.reported(None, {"r"}, {"r"})
    request.num_computed_tokens = 0
    assert [bench.side.matched(request, 0) for _ in range(3)] == [NOTHING] * 3
    assert not bench.port.lookups
    bench.side.finished(request)
    again = bench.new()
    bench.answer(4)
    assert bench.side.matched(again, 0) == (64, True)


def test_after_a_failed_load_all_blocks_are_saved_again():
    bench = Bench()
    request = bench.new()
    taken(bench, request)
    bench.side.reported(None, {"r"}, {"r"})
    [order] = bench.run(request, 96, *range(21, 28)).saves
    assert order.groups[0].block_ids == tuple(range(21, 27))


def test_what_others_received_is_none_of_ours():
    bench = Bench()
    request = bench.new()
    bench.answer(4)
    bench.side.matched(request, 0)
    bench.side.reported(None, {"r", "x"}, {"r", "x"})
    assert bench.side.matched(request, 0) == (64, True)


def test_a_load_leaves_out_blocks_before_the_window():
    who = identity(group(FullAttentionSpec(), "full"), group(SlidingWindowSpec(sliding_window=33), "window"))
    bench = Bench(who)
    request = bench.new()
    bench.answer(6, 0, presence=(b"", bytes([0, 0, 0, 0, 1, 1])))
    assert bench.side.matched(request, 0) == (96, True)
    bench.side.allocated(request, bench.blocks.give("r", range(1, 7), [0, 0, 0, 0, 7, 8]), 96)
    [order] = bench.side.build(FakePlan()).loads
    full, window = order.groups
    assert full.block_ids == (1, 2, 3, 4, 5, 6)
    assert (window.group, window.block_ids, window.keys) == (1, (7, 8), tuple(request.block_hashes[4:6]))


def test_a_group_whose_blocks_span_several_hashes_is_loaded_by_the_last_of_each():
    bench = Bench(uneven())
    request = bench.new(tokens=200)
    bench.answer(3, 0, presence=(b"", bytes([1] * 6)))
    assert bench.side.matched(request, 32) == (64, True)
    bench.side.allocated(request, bench.blocks.give("r", range(1, 4), range(11, 17)), 64)
    [order] = bench.side.build(FakePlan()).loads
    full, window = order.groups
    assert (full.block_ids, full.keys) == ((2, 3), (request.block_hashes[3], request.block_hashes[5]))
    assert (window.block_ids, window.keys) == ((13, 14, 15, 16), tuple(request.block_hashes[2:6]))


def test_loads_and_saves_of_an_adapters_request_say_which(monkeypatch):
    bench = Bench()
    monkeypatch.setattr(bench.identity, "adapter_digest", lambda lora: "d" * 32 if lora else "")
    request, base = bench.new(lora_request=SimpleNamespace(lora_name="x")), bench.new("base", family=1)
    bench.answer(0, lookup=2)
    bench.answer(2, lookup=1)
    assert bench.side.matched(request, 0) == (32, True)
    bench.side.allocated(request, bench.blocks.give("r", range(1, 8)), 32)
    assert [order.adapter for order in bench.side.build(FakePlan()).loads] == ["d" * 32]
    bench.side.reported(None, {"r"}, ())
    assert [order.adapter for order in bench.run(request, 100, *range(1, 8)).saves] == ["d" * 32]
    assert [order.adapter for order in bench.run(base, 100, *range(11, 18)).saves] == [""]


# -- saves -----------------------------------------------------------------------------------------------------------


def test_blocks_are_saved_once_their_step_has_come_back():
    bench = Bench(loads=False)
    request = bench.new()
    request.num_in_flight_tokens = 96
    assert not bench.run(request, 96, *range(1, 8)).saves
    request.num_in_flight_tokens = 30
    [order] = bench.run(request, 100).saves
    [blocks] = order.groups
    assert blocks.block_ids == (1, 2, 3, 4)
    assert blocks.keys == tuple(request.block_hashes[:4])
    assert blocks.parents == (None, *request.block_hashes[:3])
    request.num_in_flight_tokens = 0
    [order] = bench.run(request, 100).saves
    [blocks] = order.groups
    assert (blocks.block_ids, blocks.parents) == ((5, 6), tuple(request.block_hashes[3:5]))
    assert not bench.run(request, 100).saves


def test_a_jobs_blocks_are_pinned_until_every_rank_has_reported():
    bench = Bench(identity(tensor_parallel_size=2, pipeline_parallel_size=2), loads=False)
    request = bench.new()
    [order] = bench.run(request, 48, 1, 2, 3).saves
    assert bench.blocks.referenced == [1, 2, 3]
    bench.side.finished(request)
    assert bench.side.pending()
    for rank in (0, 2, 2, 0, 3):
        bench.side.reported(RankReport({order.job_id: SaveReport(1 << rank)}), (), ())
        assert bench.blocks.referenced == [1, 2, 3]
    bench.side.reported(RankReport({order.job_id: SaveReport(1 << 1)}), (), ())
    assert bench.blocks.freed == [3, 2, 1]
    assert not bench.side.pending()
    assert bench.nothing_left()


def test_a_report_of_a_job_that_is_over_changes_nothing():
    bench = Bench(loads=False)
    request = bench.new()
    [order] = bench.run(request, 48, 1, 2, 3).saves
    bench.report(order.job_id)
    bench.report(order.job_id, 77)
    assert bench.blocks.freed == [3, 2, 1]


def test_the_last_blocks_are_saved_when_the_request_ends():
    bench = Bench(loads=False)
    request = bench.new()
    bench.run(request, 0, *range(1, 8))
    request.num_computed_tokens = 100
    bench.side.finished(request)
    assert bench.blocks.referenced == [1, 2, 3, 4, 5, 6]
    assert bench.side.pending()
    [order] = bench.side.build(FakePlan()).saves
    assert order.groups[0].block_ids == (1, 2, 3, 4, 5, 6)


def test_what_the_pool_has_is_not_saved():
    bench = Bench()
    request = bench.new()
    bench.answer(2)
    bench.side.matched(request, 0)
    bench.side.allocated(request, bench.blocks.give("r", range(1, 8)), 0)
    [order] = bench.run(request, 100).saves
    assert order.groups[0].block_ids == (3, 4, 5, 6)
    assert order.groups[0].parents[0] == request.block_hashes[1]


def test_a_request_that_runs_before_the_answer_is_saved_after_it():
    """With a hit that would spare too little nothing is waited for, but what is there need not be saved."""
    bench = Bench(min_load_tokens=60)
    request = bench.new()
    assert bench.side.matched(request, 48) == NOTHING
    bench.side.allocated(request, bench.blocks.give("r", range(1, 8)), 0)
    assert not bench.run(request, 100).saves
    bench.answer(5)
    [order] = bench.run(request, 100).saves
    assert order.groups[0].block_ids == (6,)
    assert bench.port.released == [1]


def test_two_requests_of_one_prefix_save_it_once():
    bench = Bench(loads=False)
    one, two = bench.new("one"), bench.new("two")
    bench.run(one, 48, 1, 2, 3)
    [order] = bench.run(two, 64, 1, 2, 3, 4).saves
    assert order.groups[0].block_ids == (4,)


def test_generated_tokens_are_saved_unless_told_otherwise():
    for save, expected in ((True, (1, 2, 3)), (False, (1, 2))):
        bench = Bench(loads=False, save_decode_cache=save)
        request = bench.new(tokens=60, num_prompt_tokens=40)
        [order] = bench.run(request, 55, 1, 2, 3, 4).saves
        assert order.groups[0].block_ids == expected


def test_a_consumer_saves_nothing():
    bench = Bench(saves=False)
    request = bench.new()
    bench.side.allocated(request, bench.blocks.give("r", range(1, 8)), 0)
    assert not bench.run(request, 100).saves
    bench.side.finished(request)
    assert bench.nothing_left()


def test_no_more_than_the_configured_part_is_pinned():
    bench = Bench(loads=False, total=100, max_pinned_ratio=0.05)
    request = bench.new(tokens=200)
    [first] = bench.run(request, 199, *range(1, 14)).saves
    assert bench.side.pinned == 5
    looks = bench.blocks.looked_up
    assert not bench.run(request, 199).saves
    assert bench.blocks.looked_up == looks
    bench.report(first.job_id)
    [second] = bench.run(request, 199).saves
    assert second.groups[0].block_ids == (6, 7, 8, 9, 10)
    bench.side.finished(request)
    assert bench.side.pinned == 5
    assert bench.side.take_tally().counters["unsaved_blocks"] == {"pinned": 2}


def test_a_tiny_cache_is_saved_block_by_block():
    """A quarter of three blocks is none, and then nothing would ever be saved."""
    bench = Bench(loads=False, total=3, max_pinned_ratio=0.25)
    request = bench.new(tokens=40)
    for block in (1, 2):
        [order] = bench.run(request, 39, 1, 2, 3).saves
        assert order.groups[0].block_ids == (block,)
        bench.report(order.job_id)


def test_a_long_prefix_is_saved_in_small_jobs_over_several_steps():
    bench = Bench(loads=False, total=10_000, max_pinned_ratio=1.0)
    request = bench.new(tokens=TOKENS * (BLOCKS_PER_STEP + 300) + 1)
    orders = bench.run(request, request.num_tokens - 1, *range(1, BLOCKS_PER_STEP + 302)).saves
    assert [len(order.groups[0].keys) for order in orders] == [BLOCKS_PER_JOB] * (BLOCKS_PER_STEP // BLOCKS_PER_JOB)
    orders = bench.run(request, request.num_tokens - 1).saves
    assert [len(order.groups[0].keys) for order in orders] == [BLOCKS_PER_JOB, 300 - BLOCKS_PER_JOB]
    assert len({order.job_id for order in orders}) == 2


def test_a_preempted_request_goes_on_saving_from_its_new_blocks():
    """Preemption frees blocks while a save still reads them (vLLM#52360)."""
    bench = Bench(loads=False)
    request = bench.new()
    [order] = bench.run(request, 48, 1, 2, 3).saves
    request.num_computed_tokens = 0
    bench.blocks.give("r")
    bench.side.build(FakePlan((), ("r",)))
    assert bench.blocks.referenced == [1, 2, 3]
    [order] = bench.run(request, 64, 7, 8, 9, 10).saves
    assert (order.groups[0].block_ids, order.groups[0].keys) == ((10,), (request.block_hashes[3],))


def test_blocks_that_left_the_window_are_saved_from_the_engines_own_cache():
    """Else a hit could end only where a chunk ended."""
    who = identity(group(FullAttentionSpec(), "full"), group(SlidingWindowSpec(sliding_window=17), "window"))
    bench = Bench(who, loads=False)
    request = bench.new()
    bench.blocks.give("r", range(1, 7), [0, 0, 0, 0, 0, 12])
    bench.blocks.hashed[request.block_hashes[3], 1] = bench.blocks.blocks[10]
    bench.blocks.hashed[request.block_hashes[4], 1] = bench.blocks.blocks[11]
    [order] = bench.run(request, 100).saves
    full, window = order.groups
    assert full.block_ids == (1, 2, 3, 4, 5, 6)
    assert window.block_ids == (10, 11, 12)
    assert window.parents == (None, request.block_hashes[3], request.block_hashes[4])


def test_window_blocks_that_the_pool_has_are_not_saved():
    who = identity(group(FullAttentionSpec(), "full"), group(SlidingWindowSpec(sliding_window=17), "window"))
    bench = Bench(who)
    request = bench.new()
    bench.answer(6, 0, presence=(b"", bytes([0, 1, 0, 0, 1, 0])))
    bench.side.matched(request, 0)
    bench.side.allocated(request, bench.blocks.give("r", range(1, 7), range(11, 17)), 0)
    [order] = bench.run(request, 100).saves
    [window] = order.groups
    assert (window.group, window.block_ids) == (1, (11, 13, 14, 16))


def test_a_group_whose_blocks_span_several_hashes_is_saved_under_the_last_of_each():
    bench = Bench(uneven(), loads=False)
    request = bench.new(tokens=200)
    bench.run(request, 64, range(1, 7), range(11, 23))
    [order] = bench.run(request, 128).saves
    full, window = order.groups
    hashes = request.block_hashes
    assert (full.block_ids, full.keys, full.parents) == ((3, 4), (hashes[5], hashes[7]), (hashes[3], hashes[5]))
    assert (window.block_ids, window.keys) == ((15, 16, 17, 18), tuple(hashes[4:8]))


def test_missing_reports_are_asked_for_now_and_then():
    bench = Bench(loads=False, save_timeout_ms=1000)
    request = bench.new()
    [order] = bench.run(request, 48, 1, 2, 3).saves
    bench.clock = 1000 + OVERDUE_GRACE_MS - 1
    assert bench.side.build(FakePlan()).overdue == ()
    bench.clock += 1
    assert bench.side.build(FakePlan()).overdue == (order.job_id,)
    assert bench.side.build(FakePlan()).overdue == ()
    bench.clock += OVERDUE_AGAIN_MS
    assert bench.side.build(FakePlan()).overdue == (order.job_id,)
    bench.report(order.job_id, complete=False)
    bench.clock += OVERDUE_AGAIN_MS
    assert bench.side.build(FakePlan()).overdue == ()


# -- resets and the end ----------------------------------------------------------------------------------------------


def test_a_reset_clears_this_engines_scopes_and_fences_what_is_on_its_way():
    bench = Bench(loads=False)
    request = bench.new()
    [order] = bench.run(request, 48, 1, 2, 3).saves
    request.num_computed_tokens = 100
    bench.blocks.give("r", range(1, 8))
    bench.side.finished(request)
    queued = bench.side.save_jobs
    assert queued == 2
    assert not bench.side.reset()
    assert bench.port.resets == [bench.identity.scopes("", 0)]
    assert bench.blocks.referenced == [1, 2, 3]
    orders = bench.side.build(FakePlan())
    assert (orders.saves, orders.fence) == ((), order.job_id + 1)
    bench.report(order.job_id)
    assert bench.side.reset()
    assert bench.side.pending()
    assert bench.side.build(FakePlan()).fence
    assert not bench.side.pending()


def test_a_reset_that_the_pool_does_not_confirm_says_so():
    bench = Bench()
    bench.port.resets_well = False
    assert not bench.side.reset()


def test_until_a_reset_is_confirmed_the_pool_is_not_used():
    """It may hold blocks of the old weights, and whoever asked for the reset may not have looked at the answer."""
    bench = Bench()
    before = bench.new("before")
    bench.answer(4)
    assert bench.side.matched(before, 0) == (64, True)
    bench.port.resets_well = False
    assert not bench.side.reset()
    asked = len(bench.port.lookups)
    for number in range(5):
        assert bench.side.matched(bench.new(str(number)), 0) == NOTHING
        bench.answer(4, lookup=2)
        assert bench.side.matched(before, 0) == NOTHING
    assert not bench.run(bench.new("runs"), 48, 1, 2, 3).saves
    assert (len(bench.port.lookups), len(bench.port.resets)) == (asked, 1)
    bench.clock += CLEAR_AGAIN_MS
    bench.new("later")
    assert len(bench.port.resets) == 2, "tried again"
    bench.port.resets_well = True
    bench.clock += CLEAR_AGAIN_MS
    after = bench.new("after")
    assert len(bench.port.resets) == 3
    assert bench.side.matched(before, 0) == LATER, "what it found then is not there any more"
    bench.answer(2)
    assert bench.side.matched(after, 0) == (32, True)


def test_a_reset_that_saves_of_before_crossed_is_finished_when_they_have_ended():
    bench = Bench(loads=False)
    request = bench.new()
    [order] = bench.run(request, 48, 1, 2, 3).saves
    assert not bench.side.reset()
    bench.clock += CLEAR_AGAIN_MS
    assert not bench.run(bench.new("early"), 48, 11, 12, 13).saves
    assert len(bench.port.resets) == 1, "they may store something yet"
    bench.report(order.job_id)
    assert bench.run(bench.new("late"), 48, 21, 22, 23).saves
    assert len(bench.port.resets) == 2


def test_blocks_of_before_a_reset_are_not_saved_after_it():
    bench = Bench(loads=False)
    request = bench.new()
    bench.run(request, 16, *range(1, 8))
    bench.report(1)
    assert bench.side.reset()
    assert not bench.run(request, 100).saves
    request.num_computed_tokens = 0
    bench.side.build(FakePlan((), ("r",)))
    [order] = bench.run(request, 64, *range(21, 28)).saves
    assert order.groups[0].block_ids == (21, 22, 23, 24)


def test_a_request_that_had_no_blocks_at_a_reset_is_saved_after_it():
    bench = Bench(loads=False)
    request = bench.new()
    bench.run(request, 16, *range(1, 8))
    bench.report(1)
    request.num_computed_tokens = 0
    bench.side.build(FakePlan((), ("r",)))
    assert bench.side.reset()
    bench.side.allocated(request, bench.blocks.give("r", range(21, 28)), 0)
    [order] = bench.run(request, 64).saves
    assert order.groups[0].block_ids == (21, 22, 23, 24)


def test_what_was_found_before_a_reset_is_asked_for_again():
    bench = Bench()
    request = bench.new()
    bench.answer(4)
    assert bench.side.matched(request, 0) == (64, True)
    assert bench.side.reset()
    assert bench.port.released == [1]
    assert bench.side.matched(request, 0) == LATER
    bench.answer(0)
    assert bench.side.matched(request, 0) == NOTHING


def test_the_end_lets_go_of_everything():
    bench = Bench(drain_s=1.5)
    bench.new("waits")
    running = bench.new("runs")
    bench.answer(0, lookup=2)
    bench.run(running, 48, 1, 2, 3)
    assert bench.blocks.referenced
    bench.side.close()
    assert bench.nothing_left()
    assert bench.blocks.referenced == []
    assert bench.port.closed == 1.5


# -- events ----------------------------------------------------------------------------------------------------------


class Maker:
    def stored(self, request: Any, rule: Any, first: int, last: int) -> object:
        return ("stored", request.request_id, rule.group, first, last)

    def removed(self, rule: Any, key: bytes) -> object:
        return ("removed", rule.group, key)


def test_blocks_are_announced_when_every_rank_has_them_and_taken_back_once():
    bench = Bench(identity(tensor_parallel_size=2), events=Maker(), loads=False)
    request = bench.new()
    [order] = bench.run(request, 48, 1, 2, 3).saves
    bench.report(order.job_id, ranks=1)
    assert bench.side.take_events() == []
    bench.report(order.job_id, ranks=2)
    assert bench.side.take_events() == [("stored", "r", 0, 0, 3)]
    for scope in bench.identity.scopes("", 0):
        bench.port.end(Removed(scope, (request.block_hashes[1], b"other")))
    bench.side.build(FakePlan())
    assert bench.side.take_events() == [("removed", 0, request.block_hashes[1])]


def test_an_incomplete_save_is_not_announced():
    bench = Bench(events=Maker(), loads=False)
    [order] = bench.run(bench.new(), 48, 1, 2, 3).saves
    bench.report(order.job_id, complete=False)
    assert bench.side.take_events() == []


def test_a_reset_takes_back_what_was_announced():
    bench = Bench(events=Maker(), loads=False)
    request = bench.new()
    [order] = bench.run(request, 32, 1, 2, 3).saves
    bench.report(order.job_id)
    assert bench.side.reset()
    assert bench.side.take_events()[1:] == [("removed", 0, key) for key in request.block_hashes[:2]]


def test_lookups_are_counted_by_what_came_of_them():
    bench = Bench(lookup_timeout_ms=10)
    for name in "abc":
        bench.new(name)
    bench.answer(4, lookup=1)
    bench.answer(0, lookup=2)
    bench.port.end(Answer(3, error="no pool", reason="Unavailable"))
    bench.side.build(FakePlan())
    late = bench.new("d")
    bench.clock = 1_000
    bench.side.matched(late, 0)
    tally = bench.side.take_tally()
    assert tally.counters["lookups"] == {"hit": 1, "miss": 1, "Unavailable": 1, "timeout": 1}
    assert len(tally.samples["lookup_seconds"]) == 3
    assert bench.side.take_tally() is None


def test_lora_names_are_not_content():
    """vLLM's hashes carry an adapter's name and path only; scopes carry a digest of its files."""
    bench = Bench()
    request = bench.new(lora_request=SimpleNamespace(lora_name="x", lora_int_id=1, lora_path="/no/such/adapter"))
    while (answer := bench.side.matched(request, 0)) == LATER:
        assert not bench.port.lookups
    assert answer == NOTHING
