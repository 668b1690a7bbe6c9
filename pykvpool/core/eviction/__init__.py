"""Which objects go when there is no room. Read `base` (what a policy is), `lru`, `fifo`, `heap_order`, `evictor`."""

from __future__ import annotations

from collections.abc import Callable

from pykvpool.core.eviction.base import Candidate, Policy
from pykvpool.core.eviction.fifo import Fifo
from pykvpool.core.eviction.lru import Lru

#: Every policy by the name that the configuration uses. A new one is a file beside `lru` and a line here.
POLICIES: dict[str, Callable[[], Policy]] = {"lru": Lru, "fifo": Fifo}

__all__ = ["POLICIES", "Candidate", "Fifo", "Lru", "Policy"]
