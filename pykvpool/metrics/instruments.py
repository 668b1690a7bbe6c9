"""The instruments of one process or node: counters, gauges and histograms on a registry of its own.

Bind an instrument once (``seconds = metrics.histogram(MASTER_STEP_SECONDS, "Tick")``) and use it often: recording is
then one method call. A metric that is not in the table, or labels it does not have, are bugs and raise
`InternalError`.
"""

from __future__ import annotations

import platform

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from pykvpool.errors import invariant
from pykvpool.metrics.table import BUILD_INFO, LATENCY_BUCKETS, METRICS, Declared, Kind


class Metrics:
    """One registry and the instruments on it.

    Args:
        role: what this process is, for ``pykvpool_build_info``: "master", "node", "client", ...
        version: of the pool (``pykvpool.__version__``, which stands above this layer).
    """

    def __init__(self, role: str, version: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        #: One per metric, made at first use; they register themselves on `registry`.
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        ProcessCollector(registry=self.registry)
        self.gauge(BUILD_INFO, role, version, platform.python_version()).set(1)

    def counter(self, declared: Declared, *labels: str) -> Counter:
        """A counter for one set of label values."""
        found = self._counters.get(_checked(declared, Kind.COUNTER, labels))
        if found is None:
            found = Counter(declared.name, declared.meaning, declared.labels, registry=self.registry)
            self._counters[declared.name] = found
        return found.labels(*labels) if labels else found

    def gauge(self, declared: Declared, *labels: str) -> Gauge:
        """A gauge for one set of label values."""
        found = self._gauges.get(_checked(declared, Kind.GAUGE, labels))
        if found is None:
            found = Gauge(declared.name, declared.meaning, declared.labels, registry=self.registry)
            self._gauges[declared.name] = found
        return found.labels(*labels) if labels else found

    def histogram(self, declared: Declared, *labels: str) -> Histogram:
        """A histogram of seconds for one set of label values."""
        found = self._histograms.get(_checked(declared, Kind.HISTOGRAM, labels))
        if found is None:
            found = Histogram(
                declared.name, declared.meaning, declared.labels, registry=self.registry, buckets=LATENCY_BUCKETS
            )
            self._histograms[declared.name] = found
        return found.labels(*labels) if labels else found


def _checked(declared: Declared, kind: Kind, labels: tuple[str, ...]) -> str:
    """The name of a metric that is in the table, of this kind, with that many labels."""
    invariant(declared in METRICS, f"{declared.name} is not in the table of metrics")
    invariant(declared.kind is kind, f"{declared.name} is a {declared.kind.value}, not a {kind.value}")
    invariant(len(labels) == len(declared.labels), f"{declared.name} has the labels {declared.labels}, not {labels}")
    return declared.name
