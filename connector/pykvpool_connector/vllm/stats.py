"""The connector's numbers in vLLM's two forms: the stats object that travels and is logged, and Prometheus metrics.

Both or neither: inside MultiConnector, stats without metrics kill the engine. The names stand in `tally`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from pykvpool_connector.vllm.tally import METRICS, Tally

#: Before every name.
PREFIX = "vllm:pykvpool_"
#: Seconds: from a lookup on one host to the loading of tens of gigabytes.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class PyKVPoolStats(KVConnectorStats):
    """A `Tally` as vLLM passes it around: its ``data`` is the tally's dictionary."""

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data=Tally.from_dict(data or {}).to_dict())

    @property
    def tally(self) -> Tally:
        return Tally.from_dict(self.data)

    def reset(self) -> None:
        self.data = Tally().to_dict()

    def aggregate(self, other: KVConnectorStats) -> PyKVPoolStats:
        """Add another's counts to these."""
        tally = self.tally
        tally.add(Tally.from_dict(other.data))
        self.data = tally.to_dict()
        return self

    def reduce(self) -> dict[str, int | float]:
        return self.tally.summary()

    def is_empty(self) -> bool:
        return self.tally.empty


class PyKVPoolPromMetrics(KVConnectorPromMetrics):
    """One Prometheus metric for each entry of `METRICS`, per engine."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Mapping[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics: dict[str, Any] = {}
        for name, metric in METRICS.items():
            if metric.seconds:
                self._metrics[name] = metric_types[Histogram](
                    name=PREFIX + name, documentation=metric.help, buckets=BUCKETS, labelnames=labelnames
                )
            else:
                labels = [*labelnames, metric.label] if metric.label else labelnames
                self._metrics[name] = metric_types[Counter](
                    name=PREFIX + name, documentation=metric.help, labelnames=labels
                )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what a step counted to the metrics of engine `engine_idx`."""
        engine = self.per_engine_labelvalues[engine_idx]
        tally = Tally.from_dict(transfer_stats_data)
        for name, series in tally.counters.items():
            for label, amount in series.items():
                labels = [*engine, label] if METRICS[name].label else engine
                self._metrics[name].labels(*labels).inc(amount)
        for name, seconds in tally.samples.items():
            child = self._metrics[name].labels(*engine)
            for each in seconds:
                child.observe(each)
