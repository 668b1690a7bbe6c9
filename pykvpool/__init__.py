"""pykvpool: a pool of KV-cache blocks for LLM inference, shared by every engine of a cluster.

    import pykvpool

    pool = pykvpool.connect("inproc://")       # or "tcp://master:7000"
    pool.put("key", b"bytes")
    assert pool.get("key") == b"bytes"

Importing the package loads next to nothing; each name below loads its part when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pykvpool.client import Client, PutItem, SyncClient
    from pykvpool.embedded import EmbeddedPool, connect
    from pykvpool.errors import PoolError
    from pykvpool.memory.device import gpu_buffer
    from pykvpool.model.objects import Pin

__version__ = "0.1.0"

__all__ = [
    "Client",
    "EmbeddedPool",
    "Pin",
    "PoolError",
    "PutItem",
    "SyncClient",
    "__version__",
    "connect",
    "gpu_buffer",
]

_HOMES = {
    "Client": "pykvpool.client",
    "EmbeddedPool": "pykvpool.embedded",
    "Pin": "pykvpool.model.objects",
    "PoolError": "pykvpool.errors",
    "PutItem": "pykvpool.client",
    "SyncClient": "pykvpool.client",
    "connect": "pykvpool.embedded",
    "gpu_buffer": "pykvpool.memory.device",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pykvpool' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
