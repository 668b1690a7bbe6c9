"""What Prometheus sees of a process, of a client and of a whole pool."""

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from pykvpool.errors import InternalError
from pykvpool.metrics import METRICS, Kind, Metrics, StateCollector, exposition, table
from pykvpool.model.ids import SegmentId, SessionId
from pykvpool.model.replies import SegmentState, SessionState, State


def samples(text: bytes) -> dict[tuple[str, frozenset], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(text: bytes, name: str, **labels: str) -> float:
    return samples(text)[name, frozenset(labels.items())]


def a_state(**counters: int) -> State:
    return State(
        segments=(
            SegmentState(SegmentId(1), "a", 100, 40, 50, 10, ("tcp://a:1",), False),
            SegmentState(SegmentId(2), "b", 200, 200, 0, 0, (), True),
        ),
        sessions=(
            SessionState(SessionId(1), "a", "node", True, 0, 0, 0, 0),
            SessionState(SessionId(2), "b", "node", False, 0, 0, 0, 0),
            SessionState(SessionId(3), "e", "client", True, 5, 2, 1, 0),
        ),
        objects=7,
        object_bytes=50,
        leases=2,
        open_puts=1,
        waiting=3,
        scopes=4,
        counters=counters,
    )


def test_two_processes_in_one_do_not_mix_and_the_global_registry_stays_clean() -> None:
    before = set(REGISTRY._names_to_collectors)
    one, two = Metrics("client", "0.0"), Metrics("node", "0.0")
    one.histogram(table.MASTER_STEP_SECONDS, "Tick").observe(0.003)
    assert value(exposition(one.registry), "pykvpool_master_step_seconds_count", event="Tick") == 1
    assert b"pykvpool_master_step_seconds" not in exposition(two.registry)
    assert b'role="node"' in exposition(two.registry)
    assert set(REGISTRY._names_to_collectors) == before


def test_a_latency_falls_into_its_bucket() -> None:
    metrics = Metrics("client", "0.0")
    seconds = metrics.histogram(table.MASTER_STEP_SECONDS, "Tick")
    seconds.observe(0.0015)
    metrics.histogram(table.MASTER_STEP_SECONDS, "Tick").observe(45)
    text = exposition(metrics.registry)
    assert value(text, "pykvpool_master_step_seconds_bucket", event="Tick", le="0.001") == 0
    assert value(text, "pykvpool_master_step_seconds_bucket", event="Tick", le="0.002") == 1
    assert value(text, "pykvpool_master_step_seconds_bucket", event="Tick", le="30.0") == 1
    assert value(text, "pykvpool_master_step_seconds_bucket", event="Tick", le="60.0") == 2


def test_counters_and_gauges_keep_one_series_per_label() -> None:
    metrics = Metrics("client", "0.0")
    written = next(each for each in METRICS if each.name == "pykvpool_client_bytes_written_total")
    metrics.counter(written, "tcp").inc(5)
    metrics.counter(written, "tcp").inc(6)
    metrics.counter(written, "shm").inc(1)
    metrics.gauge(table.OBJECTS).set(9)
    text = exposition(metrics.registry)
    assert value(text, "pykvpool_client_bytes_written_total", fabric="tcp") == 11
    assert value(text, "pykvpool_client_bytes_written_total", fabric="shm") == 1
    assert value(text, "pykvpool_objects") == 9


def test_what_is_not_in_the_table_cannot_be_recorded() -> None:
    metrics = Metrics("client", "0.0")
    with pytest.raises(InternalError, match="not in the table"):
        metrics.counter(table.Declared("pykvpool_other_total", Kind.COUNTER, "", ""))
    with pytest.raises(InternalError, match="is a gauge, not a counter"):
        metrics.counter(table.OBJECTS)
    with pytest.raises(InternalError, match="has the labels"):
        metrics.gauge(table.SESSIONS)


def test_a_masters_state_becomes_gauges_and_its_counters_keep_their_names() -> None:
    text = exposition(
        Metrics("master", "0.0").registry,
        a_state(puts_committed_total=12),
        {"puts_committed_total": "puts that landed"},
    )
    assert value(text, "pykvpool_segment_capacity_bytes", node="b", segment="2") == 200
    assert value(text, "pykvpool_segment_quarantined_bytes", node="a", segment="1") == 10
    assert value(text, "pykvpool_segment_suspect", node="b", segment="2") == 1
    assert value(text, "pykvpool_sessions", role="node") == 2
    assert value(text, "pykvpool_sessions_disconnected", role="node") == 1
    assert value(text, "pykvpool_sessions_disconnected", role="client") == 0
    assert value(text, "pykvpool_waiting_keys") == 3
    assert value(text, "pykvpool_master_puts_committed_total") == 12
    assert b"# HELP pykvpool_master_puts_committed_total puts that landed\n" in text


def test_every_gauge_of_the_state_is_declared_and_given() -> None:
    given = {family.name for family in StateCollector(a_state(), {}).collect()}
    assert given == {each.name for each in table.STATE_METRICS}


def test_names_that_are_no_names_do_not_spoil_the_scrape() -> None:
    """The state comes over the wire, maybe from another version."""
    text = exposition(Metrics("master", "0.0").registry, a_state(**{"fine_total": 1, "a b\n": 2, "": 3, "ü": 4}))
    assert value(text, "pykvpool_master_fine_total") == 1
    assert not [name for name, _ in samples(text) if name.startswith("pykvpool_master_") and "fine" not in name]


def test_declared_names_keep_prometheus_rules() -> None:
    names = [each.name for each in METRICS]
    assert len(set(names)) == len(names)
    for each in METRICS:
        assert each.name.startswith("pykvpool_")
        assert each.name.endswith("_total") == (each.kind is Kind.COUNTER)
        assert each.meaning.endswith(".")
        if each.unit in ("bytes", "seconds"):
            assert each.unit in each.name
