"""A rank answers every order exactly once, whatever happens, and moves no block that it should not."""

import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import Unavailable
from pykvpool.hashing import BlockHasher, Rank
from pykvpool.host.port import DeviceOrder, LoadDone, SaveDone
from pykvpool_connector.vllm.messages import GroupBlocks, LoadOrder, SaveOrder, SaveReport, StepOrders
from pykvpool_connector.vllm.settings import settings_of
from pykvpool_connector.vllm.worker.side import LOGGED_FAILURES, WorkerSide
from pykvpool_connector.vllm.worker.tensors import read_tensors
from tests.vllm.fakes import FullAttentionSpec, MLAAttentionSpec, cache_config, group, identity
from tests.vllm.ports import HandPort
from tests.vllm.tensors import caches

KEYS = tuple(BlockHasher("sha256", None, 16).hash_tokens(range(16 * 64)))
SETTINGS = settings_of(SimpleNamespace(kv_role="kv_both", kv_connector_extra_config={"save_timeout_ms": 700}), {})
BLOCKS = 128


def worker(spec=None, rank: Rank | None = None, order=None, **parallel) -> tuple[WorkerSide, HandPort]:
    spec = spec or FullAttentionSpec()
    content = spec.head_size + spec.head_size_v
    tensors = caches("LBHNC", layers=["a"], blocks=BLOCKS, heads=spec.num_kv_heads, tokens=16, content=content)
    who = identity(group(spec, "a"), **parallel)
    config = cache_config(group(spec, "a"), num_blocks=BLOCKS)
    port = HandPort()
    return WorkerSide(who, SETTINGS, rank or Rank(), port, read_tensors(config, tensors, who), order), port


def blocks(*ids: int, parents: bool = False) -> GroupBlocks:
    keys = KEYS[: len(ids)]
    return GroupBlocks(0, keys, ids, (None, *keys[:-1]) if parents else ())


def load(job: int, request: str = "r", *ids: int) -> LoadOrder:
    return LoadOrder(job, request, "", (blocks(*(ids or (5, 6))),))


def save(job: int, *ids: int) -> SaveOrder:
    return SaveOrder(job, "", (blocks(*(ids or (5, 6)), parents=True),))


def test_a_load_is_reported_once_by_its_request_when_it_has_ended():
    side, port = worker()
    side.start_loads(StepOrders(loads=(load(1, "a"), load(2, "b"))))
    side.poll()
    assert side.take_transfers().received == set()
    assert side.busy
    port.end(LoadDone(2, True, 100, seconds=0.5))
    side.poll()
    transfers = side.take_transfers()
    assert (transfers.received, transfers.failed) == ({"b"}, set())
    port.end(LoadDone(1, False, error="gone", reason="KeyNotFound"))
    side.poll()
    transfers = side.take_transfers()
    assert (transfers.received, transfers.failed) == ({"a"}, {"a"})
    side.poll()
    assert side.take_transfers().received == set()
    assert not side.busy
    counted = side.take_tally().to_dict()
    assert counted["counters"] == {"loads": {"loaded": 1, "KeyNotFound": 1}, "load_bytes": {"": 100}}
    assert counted["samples"]["load_seconds"][0] == 0.5
    assert side.take_tally() is None


def test_a_job_has_this_ranks_scope_runs_and_deadline():
    side, port = worker(FullAttentionSpec(num_kv_heads=1), Rank(tensor=1), tensor_parallel_size=2)
    side.start_loads(StepOrders(loads=(load(1),)))
    side.start_saves(StepOrders(saves=(save(2),)))
    [loading], [saving] = port.loads[1].groups, port.saves[2].groups
    assert loading.scope == saving.scope
    assert loading.scope.rank.startswith("tp1-")
    assert loading.block_ids == (5, 6)
    assert loading.keys == KEYS[:2]
    assert saving.parents == (None, KEYS[0])
    assert sum(run.length for run in loading.runs) == 16 * 64 * 4
    assert port.saves[2].timeout_ms == 700


def test_jobs_of_gpu_memory_say_what_the_engines_stream_has_to_reach_first():
    """The kernels that write a block may not have run when the engine orders its save."""
    events = iter(range(7, 99))
    side, port = worker(order=lambda: DeviceOrder(next(events)))
    side.start_loads(StepOrders(loads=(load(1),)))
    side.start_saves(StepOrders(saves=(save(2),)))
    assert port.loads[1].groups[0].device == DeviceOrder(7)
    assert port.saves[2].groups[0].device == DeviceOrder(8)
    host, port = worker()
    host.start_saves(StepOrders(saves=(save(2),)))
    assert port.saves[2].groups[0].device is None


def test_a_save_is_reported_once_by_its_number_with_what_came_of_it():
    side, port = worker()
    side.start_saves(StepOrders(saves=(save(1), save(2))))
    side.poll()
    assert side.take_report() is None
    port.end(SaveDone(1, stored=1, existed=1, bytes_stored=9), SaveDone(2, dropped=2, reasons={"PoolFull": 2}))
    side.poll()
    report = side.take_report()
    assert report.saves == {
        1: SaveReport(1, 1, 1, 0, 9, complete=True),
        2: SaveReport(1, 0, 0, 2, 0, complete=False),
    }
    assert side.take_report() is None
    assert side.take_tally().to_dict()["counters"]["saved_blocks"] == {"stored": 1, "existed": 1, "PoolFull": 2}


def test_ranks_that_hold_the_same_bytes_save_each_block_once_and_each_load_all():
    sides = [worker(MLAAttentionSpec(), Rank(tensor=at), tensor_parallel_size=4) for at in range(4)]
    ids = tuple(range(1, 41))
    saved: list[bytes] = []
    for side, port in sides:
        side.start_saves(StepOrders(saves=(save(1, *ids),)))
        side.start_loads(StepOrders(loads=(load(2, "r", *ids),)))
        [mine] = port.saves[1].groups
        assert dict(zip(mine.keys, mine.block_ids, strict=True)).items() <= dict(zip(KEYS, ids, strict=False)).items()
        assert len(mine.parents) == len(mine.keys)
        saved += mine.keys
        assert port.loads[2].groups[0].keys == KEYS[:40]
    assert sorted(saved) == sorted(KEYS[:40])


def test_a_rank_without_a_block_to_save_reports_at_once():
    """Every rank has to report a job, or its pins are never given back."""
    reported = []
    for at in range(4):
        side, port = worker(MLAAttentionSpec(), Rank(tensor=at), tensor_parallel_size=4)
        side.start_saves(StepOrders(saves=(save(1, 5),)))
        reported += [side.take_report().saves] if not port.saves else [{1: SaveReport(1 << at)}]
    assert reported == [{1: SaveReport(1 << at)} for at in range(4)]


def test_a_rank_that_is_asked_for_a_save_it_knows_nothing_of_reports_it_again():
    side, port = worker(rank=Rank(pipeline=1), pipeline_parallel_size=2)
    side.start_saves(StepOrders(saves=(save(3, 5),)))
    side.start_saves(StepOrders(overdue=(2, 3)))
    assert side.take_report().saves == {2: SaveReport(0b10, complete=False)}
    port.end(SaveDone(3, stored=1))
    side.poll()
    assert side.take_report().saves == {3: SaveReport(0b10, stored=1)}


def test_an_empty_load_is_received_at_once():
    side, port = worker()
    side.start_loads(StepOrders(loads=(LoadOrder(1, "r", "", ()), LoadOrder(2, "s", "", (GroupBlocks(0, (), ()),)))))
    assert port.loads == {}
    transfers = side.take_transfers()
    assert (transfers.received, transfers.failed) == ({"r", "s"}, set())


@pytest.mark.parametrize("bad", [(0,), (BLOCKS,), (-1,)])
def test_the_null_block_and_blocks_beyond_the_cache_are_never_touched(bad):
    side, port = worker()
    side.start_loads(StepOrders(loads=(load(1, "r", *bad),)))
    side.start_saves(StepOrders(saves=(save(2, *bad),)))
    assert port.loads == port.saves == {}
    assert side.take_transfers().failed == {"r"}
    assert side.take_report().saves == {2: SaveReport(1, 0, 0, 1, 0, complete=False)}


def test_a_port_that_refuses_or_breaks_costs_a_recompute_never_the_engine(caplog):
    """An exception in wait_for_save kills the engine; an exception leaks pinned blocks (vLLM PR#43742)."""
    for broken in (Unavailable("no pool"), RuntimeError("a bug")):
        side, port = worker()
        port.broken = broken
        side.start_loads(StepOrders(loads=(load(1),)))
        side.start_saves(StepOrders(saves=(save(2),), fence=1))
        side.poll()
        assert side.take_transfers().failed == {"r"}
        assert side.take_report().saves[2].dropped == 2
        assert side.take_tally().counters["loads"] == {type(broken).__name__: 1}
        port.broken = None
        assert not side.busy


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("TooFewNodes", "no node lends memory to this pool: start `pykvpool node`; `pykvpool status` lists them"),
        ("Unavailable", "`pykvpool status` shows whether its master and nodes are there"),
    ],
)
def test_what_a_newcomer_can_do_about_lost_saves_is_said(caplog, reason, advice):
    side, port = worker()
    side.start_saves(StepOrders(saves=(save(2),)))
    port.end(SaveDone(2, dropped=2, reasons={reason: 2}))
    side.poll()
    assert f"2 blocks were not saved: {reason} (" in caplog.text
    assert advice in caplog.text


def test_an_answer_to_nothing_is_not_passed_on(caplog):
    """A duplicate completion kills the engine (vLLM#53049)."""
    side, port = worker()
    side.start_loads(StepOrders(loads=(load(1),)))
    port.end(LoadDone(1, True), LoadDone(1, True), LoadDone(9, False), SaveDone(1), SaveDone(9))
    side.poll()
    assert side.take_transfers().received == {"r"}
    assert side.take_report() is None
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 4


def test_a_fence_goes_before_the_saves_of_its_step_and_only_once():
    side, port = worker()
    side.start_saves(StepOrders(saves=(save(1),)))
    side.start_saves(StepOrders(saves=(save(2),), fence=1))
    side.start_saves(StepOrders(fence=1))
    assert port.fences == 1
    side.start_saves(StepOrders(fence=2))
    assert port.fences == 2
    assert set(port.saves) == {1, 2}


def test_sides_that_disagree_on_the_fingerprint_move_nothing(caplog):
    side, port = worker()
    side.start_loads(StepOrders(loads=(load(1),), fingerprint="another"))
    side.start_saves(StepOrders(saves=(save(2),), fingerprint="another"))
    assert port.loads == port.saves == {}
    assert side.take_transfers().failed == {"r"}
    assert side.take_report().saves[2].dropped == 2
    assert "configurations differ" in caplog.text
    same = identity(group(FullAttentionSpec(), "a")).fingerprint
    side.start_loads(StepOrders(loads=(load(3),), fingerprint=same))
    assert set(port.loads) == {3}


def test_failures_are_logged_a_bounded_number_of_times(caplog):
    side, port = worker()
    for job in range(3 * LOGGED_FAILURES):
        side.start_loads(StepOrders(loads=(load(job, f"r{job}"),)))
        port.end(LoadDone(job, False, error="no pool", reason="Unavailable"))
        side.poll()
    assert len(caplog.records) == LOGGED_FAILURES + 1
    assert "counted" in caplog.records[-1].message
    caplog.clear()
    side, port = worker()
    port.broken = RuntimeError("a bug")
    for _step in range(3 * LOGGED_FAILURES):
        side.poll()
    assert len(caplog.records) == LOGGED_FAILURES, "a stack for each step of the engine"


def test_closing_drains_for_the_time_that_is_set_and_only_once():
    side, port = worker()
    side.close()
    assert port.closed == 5.0
    port.closed = None
    side.close()
    assert port.closed is None


@given(st.data())
def test_whatever_the_order_of_events_every_order_is_answered_once(data):
    side, port = worker()
    received: list[str] = []
    failed: set[str] = set()
    reports: list[int] = []
    job = 0
    for _ in range(data.draw(st.integers(1, 12))):
        loads, saves = [], []
        for _ in range(data.draw(st.integers(0, 3))):
            job += 1
            ids = tuple(data.draw(st.lists(st.integers(-1, BLOCKS), min_size=0, max_size=3)))
            orders = (blocks(*ids),) if ids else ()
            if data.draw(st.booleans()):
                loads.append(LoadOrder(job, str(job), "", orders))
            else:
                saves.append(SaveOrder(job, "", orders))
        port.broken = data.draw(st.sampled_from([None, None, RuntimeError("bug")]))
        side.start_loads(StepOrders(loads=tuple(loads)))
        side.start_saves(StepOrders(saves=tuple(saves), fence=data.draw(st.integers(0, job))))
        port.broken = None
        for number in list(port.loads):
            if data.draw(st.booleans()):
                port.end(LoadDone(number, data.draw(st.booleans())))
        for number in list(port.saves):
            if data.draw(st.booleans()):
                port.end(SaveDone(number, stored=1))
        side.poll()
        transfers, report = side.take_transfers(), side.take_report()
        received += transfers.received
        failed |= transfers.failed
        reports += report.saves if report else []
        assert transfers.failed <= transfers.received
    port.end(*(LoadDone(number, False) for number in port.loads), *(SaveDone(number) for number in port.saves))
    side.poll()
    received += side.take_transfers().received
    report = side.take_report()
    reports += report.saves if report else []
    assert sorted([*map(int, received), *reports]) == list(range(1, job + 1))
    assert not side.busy
