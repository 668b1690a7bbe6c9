"""Mooncake's enumerations, with its names and numbers."""

from __future__ import annotations

from enum import IntEnum


class SoftPinAction(IntEnum):
    """What a put does to an object's soft pin."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ReplicaStatus(IntEnum):
    """Of a replica descriptor; those that are handed out are always COMPLETE."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class ObjectDataType(IntEnum):
    """What an object holds, in the words of its writer; the pool stores bytes and takes no notice."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class TaskStatus(IntEnum):
    """Of copy and move tasks, which the pool does not have."""

    PENDING = 0
    PROCESSING = 1
    SUCCESS = 2
    FAILED = 3


class TaskType(IntEnum):
    """Of copy and move tasks, which the pool does not have."""

    REPLICA_COPY = 0
    REPLICA_MOVE = 1
