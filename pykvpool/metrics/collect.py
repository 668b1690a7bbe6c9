"""Metrics that are read off at scrape time: the master's `State`, and the counters that a part keeps anyway.

Nothing is counted twice for Prometheus' sake, and a scrape that nobody makes costs nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pykvpool.errors import invariant
from pykvpool.metrics import table
from pykvpool.metrics.table import Declared, Kind
from pykvpool.model.replies import State

_COUNTER_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)


class StateCollector(Collector):
    """One `State` of the master as metrics: gauges of the table, and its counters by their own names.

    Args:
        state: as the master told it.
        meanings: what its counters count, by name. One without a meaning is exported all the same.
        node: of this node alone, and then nothing but its segments: what is the pool's belongs to the master's metrics,
            and would be counted twice by who adds up all processes. None: everything.
    """

    def __init__(self, state: State, meanings: Mapping[str, str], node: str | None = None) -> None:
        self._state = state
        self._meanings = meanings
        self._node = node

    def collect(self) -> Iterator[Metric]:
        segments = [each for each in self._state.segments if self._node is None or each.node == self._node]
        places = [(segment.node, str(segment.segment)) for segment in segments]
        for declared, values in (
            (table.SEGMENT_CAPACITY, [segment.capacity_bytes for segment in segments]),
            (table.SEGMENT_FREE, [segment.free_bytes for segment in segments]),
            (table.SEGMENT_USED, [segment.used_bytes for segment in segments]),
            (table.SEGMENT_QUARANTINED, [segment.quarantined_bytes for segment in segments]),
            (table.SEGMENT_SUSPECT, [int(segment.suspect) for segment in segments]),
        ):
            yield _family(declared, zip(places, values, strict=True))
        if self._node is None:
            yield from self._pool()

    def _pool(self) -> Iterator[Metric]:
        state = self._state
        by_role = Counter(session.role for session in state.sessions)
        away = Counter(session.role for session in state.sessions if not session.connected)
        yield _family(table.SESSIONS, (((role,), count) for role, count in sorted(by_role.items())))
        yield _family(table.SESSIONS_DISCONNECTED, (((role,), away[role]) for role in sorted(by_role)))
        for declared, value in (
            (table.OBJECTS, state.objects),
            (table.OBJECT_BYTES, state.object_bytes),
            (table.LEASES, state.leases),
            (table.OPEN_PUTS, state.open_puts),
            (table.WAITING, state.waiting),
            (table.SCOPES, state.scopes),
        ):
            yield _family(declared, [((), value)])
        for name, value in sorted(state.counters.items()):
            # The state may come from a master of another version, so that its names are data, not ours.
            if _COUNTER_NAME.fullmatch(name):
                meaning = self._meanings.get(name, "(unknown to this version)")
                yield _family(Declared(table.MASTER_PREFIX + name, Kind.COUNTER, "", meaning), [((), value)])


class StatisticsCollector(Collector):
    """Counters that a part keeps in plain fields.

    Args:
        declared: the metrics, for example `table.CLIENT_METRICS`.
        prefix: what stands before the field's name in theirs; ``_total`` stands behind it.
        read: gives the present values: a number per field, or for a metric with a label numbers by its values.
    """

    def __init__(
        self, declared: Iterable[Declared], prefix: str, read: Callable[[], Mapping[str, int | Mapping[str, int]]]
    ) -> None:
        self._declared = {each.name.removeprefix(prefix).removesuffix("_total"): each for each in declared}
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """The metrics without values: by it a registry refuses to take them twice."""
        return (_family(declared, ()) for declared in self._declared.values())

    def collect(self) -> Iterator[Metric]:
        values = self._read()
        for field, declared in self._declared.items():
            value = values[field]
            if isinstance(value, Mapping):
                yield _family(declared, (((label,), number) for label, number in sorted(value.items())))
            else:
                yield _family(declared, [((), value)])


def exposition(
    registry: CollectorRegistry,
    state: State | None = None,
    meanings: Mapping[str, str] = MappingProxyType({}),
    node: str | None = None,
) -> bytes:
    """Prometheus' text format of a registry, and of a master's state where there is one (see `StateCollector`)."""
    text = generate_latest(registry)
    if state is not None:
        once = CollectorRegistry(auto_describe=False)
        once.register(StateCollector(state, meanings, node))
        text += generate_latest(once)
    return text


def _family(declared: Declared, rows: Iterable[tuple[tuple[str, ...], int]]) -> Metric:
    invariant(declared.kind is not Kind.HISTOGRAM, f"{declared.name} cannot be read off")
    family: CounterMetricFamily | GaugeMetricFamily = (
        CounterMetricFamily(declared.name, declared.meaning, labels=declared.labels)
        if declared.kind is Kind.COUNTER
        else GaugeMetricFamily(declared.name, declared.meaning, labels=declared.labels)
    )
    for labels, value in rows:
        family.add_metric(labels, value)
    return family
