"""The names that ``from mooncake.store import ...`` finds, with Mooncake's spelling."""

from __future__ import annotations

from pykvpool_connector.mooncake.enums import ObjectDataType, ReplicaStatus, SoftPinAction, TaskStatus, TaskType
from pykvpool_connector.mooncake.handles import BufferHandle
from pykvpool_connector.mooncake.host_memory import MooncakeHostMemAllocator, bind_to_numa_node
from pykvpool_connector.mooncake.objects import Descriptor, MemoryDescriptor, ReplicaDescriptor
from pykvpool_connector.mooncake.replicate import ReplicateConfig
from pykvpool_connector.mooncake.shards import ParallelAxis, ReadTarget, TensorParallelism
from pykvpool_connector.mooncake.store import MooncakeDistributedStore

# Mooncake exports the members of its enumerations as well; where two have one name it is the later that stays.
UNKNOWN, KVCACHE, TENSOR, WEIGHT, SAMPLE, ACTIVATION, GRADIENT, OPTIMIZER_STATE, METADATA, GENERAL = ObjectDataType
UNDEFINED, INITIALIZED, _, COMPLETE, REMOVED, _ = ReplicaStatus
PENDING, PROCESSING, SUCCESS, FAILED = TaskStatus
REPLICA_COPY, REPLICA_MOVE = TaskType

__all__ = [
    "ACTIVATION",
    "COMPLETE",
    "FAILED",
    "GENERAL",
    "GRADIENT",
    "INITIALIZED",
    "KVCACHE",
    "METADATA",
    "OPTIMIZER_STATE",
    "PENDING",
    "PROCESSING",
    "REMOVED",
    "REPLICA_COPY",
    "REPLICA_MOVE",
    "SAMPLE",
    "SUCCESS",
    "TENSOR",
    "UNDEFINED",
    "UNKNOWN",
    "WEIGHT",
    "BufferHandle",
    "Descriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "ReadTarget",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "bind_to_numa_node",
]
