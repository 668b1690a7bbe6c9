"""Writes docs/metrics.md from the table, so that the page cannot differ from the code."""

from __future__ import annotations

from pykvpool.metrics.table import CLIENT_PREFIX, LATENCY_BUCKETS, MASTER_PREFIX, METRICS, Declared

_INTRODUCTION = f"""# Metrics

*This page is written by `make reference` from `pykvpool/metrics/table.py`.*

`--http PORT` on a master or node serves Prometheus' text format at `/metrics`, beside `/health`, `/api/state` and a
page for people at `/`. Every process has a registry of its own, which also holds the usual `process_...` metrics.

The master's own counters come beside those below, each as `{MASTER_PREFIX}` and the name it has in `/api/state`. A
client's counters (`{CLIENT_PREFIX}...`) appear in the registry of the process that the client lives in.

Histograms have buckets from {LATENCY_BUCKETS[0] * 1e6:.0f} us to {LATENCY_BUCKETS[-1]:.0f} s, three per decade.

| metric | kind | labels | unit | meaning |
|---|---|---|---|---|
"""


def metrics_markdown() -> str:
    """The whole page."""
    return _INTRODUCTION + "\n".join(_row(declared) for declared in METRICS) + "\n"


def _row(declared: Declared) -> str:
    labels = ", ".join(f"`{label}`" for label in declared.labels)
    return f"| `{declared.name}` | {declared.kind.value} | {labels} | {declared.unit} | {declared.meaning} |"
