"""The client of the pool. Start with `client` (the face), then `writer` and `reader` (the life of a block)."""

from pykvpool.client.client import Client
from pykvpool.client.exporting import export_metrics
from pykvpool.client.held import HeldLease
from pykvpool.client.sync import SyncClient
from pykvpool.client.types import (
    ClientStatistics,
    GetResult,
    ListedKey,
    PrefixMatch,
    PutItem,
    PutOptions,
    PutResult,
    RangeItem,
    RemovedCount,
)
from pykvpool.client.views import View

__all__ = [
    "Client",
    "ClientStatistics",
    "GetResult",
    "HeldLease",
    "ListedKey",
    "PrefixMatch",
    "PutItem",
    "PutOptions",
    "PutResult",
    "RangeItem",
    "RemovedCount",
    "SyncClient",
    "View",
    "export_metrics",
]
