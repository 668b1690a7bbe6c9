"""Which part of a tensor is stored under which key: the words of Mooncake's parallel tensor calls, without I/O.

A shard is named by axes (`TensorParallelism`): tensor parallel ranks split the tensor along a dimension, the others
only tell copies, experts and stages apart. The key of a shard is made here, for writing and for reading alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pykvpool.errors import InvalidArgument
from pykvpool_connector.mooncake.checks import integer
from pykvpool_connector.mooncake.tensor_format import KINDS, MAX_AXES, Axis
from pykvpool_connector.mooncake.torch_tensors import Tensor

#: In which order the axes of a shard appear in its key, whatever order they were given in.
_KEY_ORDER = ("dp", "tp", "ep", "pp")


@dataclass(slots=True)
class ParallelAxis:
    """One axis of a shard's identity. Attributes are set one by one, as with Mooncake's."""

    #: "tp", "dp", "ep" or "pp".
    kind: str = ""
    rank: int = 0
    size: int = 1
    #: Dimension that a "tp" axis splits.
    split_dim: int | None = None
    expert_id: int | None = None
    stage_id: int | None = None


@dataclass(slots=True)
class TensorParallelism:
    """The axes that identify a shard."""

    axes: list[ParallelAxis] = field(default_factory=list)


@dataclass(slots=True)
class ReadTarget:
    """What a reader wants."""

    #: "as_stored" (what lies under the key), "shard" (the part `parallelism` names) or "full" (the whole tensor).
    mode: str = "as_stored"
    parallelism: TensorParallelism | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """What is stored under one key."""

    key: str
    tensor: Tensor
    #: Empty: the whole tensor.
    axes: tuple[Axis, ...] = ()
    #: Shape of the whole tensor; None: of `tensor`.
    whole_shape: tuple[int, ...] | None = None


def checked_axes(parallelism: TensorParallelism) -> tuple[Axis, ...]:
    """The axes, each checked. Raises `InvalidArgument`."""
    if not 0 < len(parallelism.axes) <= MAX_AXES:
        raise InvalidArgument(f"{len(parallelism.axes)} axes: 1 to {MAX_AXES} are allowed")
    axes = tuple(
        Axis(axis.kind, axis.rank, axis.size, axis.split_dim, axis.expert_id, axis.stage_id)
        for axis in parallelism.axes
    )
    for axis in axes:
        if axis.kind not in KINDS:
            raise InvalidArgument(f"axis kind {axis.kind!r}: one of {', '.join(KINDS)} is allowed")
        if not 0 <= axis.rank < axis.size:
            raise InvalidArgument(f"rank {axis.rank} of {axis.size} on the axis {axis.kind!r}: ranks count from 0")
        if axis.kind == "tp" and axis.split_dim is None:
            raise InvalidArgument("a tp axis needs its split_dim")
    if len({axis.kind for axis in axes}) != len(axes):
        raise InvalidArgument("each kind of axis may appear once")
    return axes


def partition_axes(partition: object) -> tuple[Axis, ...]:
    """Axes of a ``writer_partition``: an object, dict or tuple of rank, size, split_dim. Raises `InvalidArgument`."""
    names = ("rank", "size", "split_dim")
    if isinstance(partition, dict):
        given = [partition.get(name) for name in names]
    elif isinstance(partition, (tuple, list)):
        given = list(partition)
    else:
        given = [getattr(partition, name, None) for name in names]
    if len(given) != len(names) or None in given:
        raise InvalidArgument("writer_partition needs rank, size and split_dim")
    rank, size, split_dim = (integer(name, each) for name, each in zip(names, given, strict=True))
    return checked_axes(TensorParallelism([ParallelAxis("tp", rank, size, split_dim)]))


def tp_axis(axes: tuple[Axis, ...]) -> Axis | None:
    """The axis that splits the tensor, None where none does."""
    return next((axis for axis in axes if axis.kind == "tp"), None)


def shard_key(key: str, axes: tuple[Axis, ...]) -> str:
    """``key_tp_0`` for a tensor parallel shard; longer for more axes; `key` itself for a whole tensor."""
    if len(axes) == 1 and axes[0].kind == "tp":
        return f"{key}_tp_{axes[0].rank}"
    parts = [key]
    for axis in sorted(axes, key=lambda axis: _KEY_ORDER.index(axis.kind)):
        part = f"{axis.kind}_{axis.rank}of{axis.size}"
        for mark, number in (("sd", axis.split_dim), ("eid", axis.expert_id), ("sid", axis.stage_id)):
            part += "" if number is None else f"_{mark}{number}"
        parts.append(part)
    return "__".join(parts)


def part_of(shape: tuple[int, ...], axis: Axis) -> tuple[int, int]:
    """(begin, length) along the axis's dimension of its rank's part. Raises `InvalidArgument`: uneven, no such one."""
    dimension = axis.split_dim
    if dimension is None or not 0 <= dimension < len(shape):
        raise InvalidArgument(f"split_dim {dimension} of a tensor with {len(shape)} dimensions")
    length, rest = divmod(shape[dimension], axis.size)
    if rest or not length:
        raise InvalidArgument(
            f"{shape[dimension]} along dimension {dimension} cannot be split into {axis.size} equal parts"
        )
    return axis.rank * length, length
