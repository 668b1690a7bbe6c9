"""Writes docs/metrics.md from the tables, so that the page cannot differ from the code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykvpool.metrics.table import CLIENT_PREFIX, LATENCY_BUCKETS, MASTER_PREFIX, METRICS, Declared

_INTRODUCTION = f"""# Metrics

*This page is written by `make reference` from `pykvpool/metrics/table.py`.*

`--http PORT` on a master or node serves Prometheus' text format at `/metrics`, beside `/health`, `/api/state` (the
whole pool's, at every process) and a page for people at `/`. Scrape all of them:

- the **master** for what is the pool's: segments of all nodes, objects, sessions, and the master's own counters;
- each **node** for its process and its own segments, as the master counts them;
- the process that a **client** lives in for `{CLIENT_PREFIX}...`, once it has said so in one line:

```python
from pykvpool.client import export_metrics

export_metrics(client)  # a Client or a SyncClient, or several; on prometheus_client.REGISTRY unless told otherwise
```

Every process of the pool has a registry of its own, which also holds the usual `process_...` metrics.

Histograms have buckets from {LATENCY_BUCKETS[0] * 1e6:.0f} us to {LATENCY_BUCKETS[-1]:.0f} s, three per decade.

| metric | kind | labels | unit | meaning |
|---|---|---|---|---|
"""


_MASTER = f"""
## The master's counters

They stand under their own names in `/api/state`, and with `{MASTER_PREFIX}` before them in `/metrics`. They count from
the master's start.

| metric | counts |
|---|---|
"""


def metrics_markdown(master_counters: Mapping[str, str]) -> str:
    """The whole page; `master_counters`: what each counter of the master's state counts, by name."""
    own = [f"| `{MASTER_PREFIX}{name}` | {meaning} |" for name, meaning in master_counters.items()]
    return _INTRODUCTION + _lines(map(_row, METRICS)) + _MASTER + _lines(own)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _row(declared: Declared) -> str:
    labels = ", ".join(f"`{label}`" for label in declared.labels)
    return f"| `{declared.name}` | {declared.kind.value} | {labels} | {declared.unit} | {declared.meaning} |"
