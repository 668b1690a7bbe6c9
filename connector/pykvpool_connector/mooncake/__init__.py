"""`mooncake.store`'s API on this pool: programs written for it run by changing an import.

    from pykvpool_connector.mooncake import MooncakeDistributedStore, ReplicateConfig

or, without changing the program, ``import pykvpool_connector.mooncake.install`` before its imports, or
``pykvpool mooncake-shim -- python program.py``. Start reading with `store`; docs/mooncake.md has every method.
"""

from pykvpool_connector.mooncake.api import (
    BufferHandle,
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ObjectDataType,
    ParallelAxis,
    ReadTarget,
    ReplicaStatus,
    ReplicateConfig,
    SoftPinAction,
    TensorParallelism,
)
from pykvpool_connector.mooncake.async_store import MooncakeDistributedStoreAsync

__all__ = [
    "BufferHandle",
    "MooncakeDistributedStore",
    "MooncakeDistributedStoreAsync",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "ReadTarget",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TensorParallelism",
]
