"""Numbers for Prometheus: what is measured (`table`), the instruments (`instruments`), and what is read off at scrape
time (`collect`). `reference` writes docs/metrics.md.

Every node or process has one `Metrics` with a registry of its own; the library's global registry is never used, so
that several pools live in one process without mixing. Recording is cheap, and done per batch, not per key.
"""

from pykvpool.metrics.collect import StateCollector, StatisticsCollector, exposition
from pykvpool.metrics.instruments import Metrics
from pykvpool.metrics.table import METRICS, Declared, Kind

__all__ = [
    "METRICS",
    "Declared",
    "Kind",
    "Metrics",
    "StateCollector",
    "StatisticsCollector",
    "exposition",
]
