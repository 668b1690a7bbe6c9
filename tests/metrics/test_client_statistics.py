"""A client's own counters, as Prometheus sees them."""

from dataclasses import asdict

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pykvpool.metrics import Metrics, StatisticsCollector, exposition, table

ClientStatistics = pytest.importorskip("pykvpool.client.types").ClientStatistics


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
