"""A client's counters for Prometheus: call `export_metrics(client)` once, and the process that serves metrics has them.

The pool's own processes have an HTTP face for their metrics; a client lives in somebody else's process, which has one
already. Nothing is counted for it: what the client counts anyway is read off when somebody scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from pykvpool.client.types import ClientStatistics
from pykvpool.errors import InvalidArgument

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Counting(Protocol):
    """`Client` and `SyncClient` are such."""

    def statistics(self) -> ClientStatistics: ...


def export_metrics(*clients: Counting, registry: CollectorRegistry | None = None) -> Callable[[], None]:
    """Put the counters of `clients`, added up, on a Prometheus registry; returns a function that takes them off again.

    Args:
        clients: all those of this process: a registry takes these metrics once.
        registry: None: the library's own (`prometheus_client.REGISTRY`), which `prometheus_client.start_http_server`
            and most frameworks serve.

    Raises:
        InvalidArgument: the registry has these metrics already, or there is no client.
    """
    # Here and not above: most clients are never asked for metrics, and the import takes a moment.
    import prometheus_client

    from pykvpool.metrics import StatisticsCollector, table

    if not clients:
        raise InvalidArgument("export_metrics needs at least one client")
    target = prometheus_client.REGISTRY if registry is None else registry
    collector = StatisticsCollector(table.CLIENT_METRICS, table.CLIENT_PREFIX, lambda: _added_up(clients))
    try:
        target.register(collector)
    except ValueError:
        raise InvalidArgument(
            "this registry has the metrics of a client already: name all clients of the process in one call"
        ) from None

    def take_off() -> None:
        target.unregister(collector)

    return take_off


def _added_up(clients: tuple[Counting, ...]) -> Mapping[str, int | Mapping[str, int]]:
    """The sum of every counter; those by fabric are added up fabric by fabric."""
    total = ClientStatistics()
    for client in clients:
        total.add(client.statistics())
    return asdict(total)
