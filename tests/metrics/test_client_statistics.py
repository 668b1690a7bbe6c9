"""A client's own counters, as Prometheus sees them."""

from dataclasses import asdict

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import pykvpool
from pykvpool.client import ClientStatistics, export_metrics
from pykvpool.errors import InvalidArgument
from pykvpool.metrics import Metrics, StatisticsCollector, exposition, table


def test_every_counter_of_a_client_is_exported_as_it_stands_at_the_scrape() -> None:
    statistics = ClientStatistics(gets=3, bytes_read={"tcp": 10, "shm": 20})
    metrics = Metrics("client", "0.0")
    metrics.registry.register(
        StatisticsCollector(table.CLIENT_METRICS, table.CLIENT_PREFIX, lambda: asdict(statistics))
    )
    statistics.gets += 1
    values = {
        (sample.name, sample.labels.get("fabric")): sample.value
        for family in text_string_to_metric_families(exposition(metrics.registry).decode())
        for sample in family.samples
    }
    assert values["pykvpool_client_gets_total", None] == 4
    assert values["pykvpool_client_bytes_read_total", "shm"] == 20
    declared = {each.name for each in table.CLIENT_METRICS}
    assert declared == {f"{table.CLIENT_PREFIX}{field}_total" for field in asdict(statistics)}


def samples(registry: CollectorRegistry) -> dict[tuple[str, str | None], float]:
    return {
        (sample.name, sample.labels.get("fabric")): sample.value
        for family in text_string_to_metric_families(exposition(registry).decode())
        for sample in family.samples
    }


def test_one_line_puts_the_counters_of_real_clients_on_a_registry() -> None:
    registry = CollectorRegistry()
    with pykvpool.connect("inproc://") as one, pykvpool.connect("inproc://") as other:
        take_off = export_metrics(one, other, registry=registry)
        one.put("key", b"value")
        other.put("key", b"other value")
        one.get("key")
        values = samples(registry)
        assert values["pykvpool_client_puts_total", None] == 2
        assert values["pykvpool_client_gets_total", None] == 1
        assert values["pykvpool_client_bytes_written_total", "inproc"] == len(b"value") + len(b"other value")
        with pytest.raises(InvalidArgument, match="in one call"):
            export_metrics(one, registry=registry)
    assert samples(registry)["pykvpool_client_puts_total", None] == 2, "a closed client keeps its numbers"
    take_off()
    assert samples(registry) == {}


def test_without_a_registry_the_librarys_own_is_taken() -> None:
    with pykvpool.connect("inproc://") as client:
        take_off = export_metrics(client)
        try:
            assert samples(REGISTRY)["pykvpool_client_puts_total", None] == 0
        finally:
            take_off()
    assert ("pykvpool_client_puts_total", None) not in samples(REGISTRY)


def test_metrics_of_no_client_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least one client"):
        export_metrics()
