"""The connector's numbers as vLLM handles them: both forms exist, and agree."""

import pickle

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from vllm.config import VllmConfig

from pykvpool_connector.vllm.stats import PyKVPoolPromMetrics, PyKVPoolStats
from pykvpool_connector.vllm.tally import METRICS, Tally


def stats() -> PyKVPoolStats:
    tally = Tally()
    for name, metric in METRICS.items():
        if metric.seconds:
            tally.observe(name, 0.25)
        else:
            tally.count(name, 3, "why" if metric.label else "")
    return PyKVPoolStats(tally.to_dict())


def test_stats_survive_the_way_from_worker_to_log():
    one = pickle.loads(pickle.dumps(stats()))
    two = PyKVPoolStats().aggregate(one).aggregate(PyKVPoolStats(one.to_dict()))
    assert not two.is_empty()
    assert two.reduce()["saves"] == 6
    two.reset()
    assert two.is_empty()


def test_every_metric_reaches_prometheus_per_engine():
    prom = PyKVPoolPromMetrics(
        VllmConfig(),
        {Counter: Counter, Gauge: Gauge, Histogram: Histogram},
        ["model", "engine"],
        {0: ["m", "0"], 1: ["m", "1"]},
    )
    prom.observe(stats().to_dict(), engine_idx=1)
    prom.observe(stats().to_dict(), engine_idx=1)
    for name, metric in METRICS.items():
        labels = {"model": "m", "engine": "1"}
        if metric.seconds:
            assert REGISTRY.get_sample_value(f"vllm:pykvpool_{name}_count", labels) == 2
        else:
            labels |= {metric.label: "why"} if metric.label else {}
            assert REGISTRY.get_sample_value(f"vllm:pykvpool_{name}_total", labels) == 6
