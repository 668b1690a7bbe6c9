"""How a tensor is stored: a header of 304 bytes, then its elements in row order, as Mooncake 0.3.13 lays them out.

    offset  0  magic "NOOM", u16 version, u16 header size     8  u32 dtype, u32 dimensions
           16  u32 layout (0 whole, 1 shard), u32 unused      24  u64 offset and u64 size of the elements
           40  i64[8] shape of the whole tensor, -1 unused   104  i64[8] shape of what is stored here
          168  u32 number of axes, 12 bytes unused           184  5 axes of six i32, -1: not given

An axis says which part of what a shard is: kind (tp, dp, ep, pp), rank, size, split dimension, expert, stage. No tensor
library is needed here; dtypes go by torch's names.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pykvpool.errors import InvalidArgument, NotSupported

HEADER_BYTES = 304
#: Most dimensions that the header has room for.
MAX_DIMENSIONS = 8
#: Most axes that the header has room for.
MAX_AXES = 5

MAGIC = b"NOOM"
_VERSION = 1
_WHOLE, _SHARD = 0, 1
_HEAD = struct.Struct("<4sHHIIIIQQ8q8qI12x")
_AXIS = struct.Struct("<6i")

#: dtype -> its number in the header, by torch's names.
DTYPES = {
    "float32": 0, "float64": 1, "int8": 2, "uint8": 3, "int16": 4, "uint16": 5, "int32": 6, "uint32": 7, "int64": 8,
    "uint64": 9, "bool": 10, "float16": 11, "bfloat16": 12, "float8_e4m3fn": 13, "float8_e5m2": 14,
}  # fmt: skip
_DTYPE_NAMES = {number: name for name, number in DTYPES.items()}
#: Bytes of an element.
ITEM_BYTES = {
    "float32": 4, "float64": 8, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8,
    "uint64": 8, "bool": 1, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
KINDS = ("tp", "dp", "ep", "pp")


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a shard's identity; None: not given."""

    kind: str
    rank: int
    size: int
    split_dim: int | None = None
    expert_id: int | None = None
    stage_id: int | None = None


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What is stored under a key."""

    dtype: str
    #: Of the whole tensor.
    whole_shape: tuple[int, ...]
    #: Of what is stored here: the whole tensor, or a shard of it.
    shape: tuple[int, ...]
    axes: tuple[Axis, ...] = ()

    @property
    def elements(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def data_bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]

    @property
    def object_bytes(self) -> int:
        return HEADER_BYTES + self.data_bytes

    def pack(self) -> bytes:
        """The 304 bytes. Raises `NotSupported` (dtype), `InvalidArgument` (dimensions, axes)."""
        if self.dtype not in DTYPES:
            raise NotSupported(f"tensors of {self.dtype} cannot be stored: known are {', '.join(DTYPES)}")
        if len(self.shape) > MAX_DIMENSIONS or len(self.axes) > MAX_AXES:
            raise InvalidArgument(
                f"{len(self.shape)} dimensions and {len(self.axes)} axes: at most {MAX_DIMENSIONS} and {MAX_AXES}"
            )
        layout = _SHARD if self.axes else _WHOLE
        head = _HEAD.pack(
            MAGIC, _VERSION, HEADER_BYTES, DTYPES[self.dtype], len(self.shape), layout, 0, HEADER_BYTES,
            self.data_bytes, *_padded(self.whole_shape), *_padded(self.shape), len(self.axes),
        )  # fmt: skip
        return (head + b"".join(_pack_axis(axis) for axis in self.axes)).ljust(HEADER_BYTES, b"\0")


def parse(raw: memoryview) -> TensorHeader:
    """The header at the start of an object. Raises `InvalidArgument` where the object is no tensor, or not whole."""
    if raw.nbytes < HEADER_BYTES or bytes(raw[:4]) != MAGIC:
        raise InvalidArgument("the object is no tensor: it does not begin with a tensor's header")
    fields = _HEAD.unpack_from(raw)
    _, version, header_bytes, dtype, dimensions, _, _, data_offset, data_bytes = fields[:9]
    axes_count = fields[25]
    if (version, header_bytes, data_offset) != (_VERSION, HEADER_BYTES, HEADER_BYTES):
        raise InvalidArgument(f"a tensor's header of version {version} and {header_bytes} bytes cannot be read")
    if dtype not in _DTYPE_NAMES or dimensions > MAX_DIMENSIONS or axes_count > MAX_AXES:
        raise InvalidArgument("the tensor's header is damaged")
    header = TensorHeader(
        _DTYPE_NAMES[dtype],
        tuple(fields[9 : 9 + dimensions]),
        tuple(fields[17 : 17 + dimensions]),
        tuple(_unpack_axis(raw, position) for position in range(axes_count)),
    )
    if any(length < 0 for length in header.shape) or header.data_bytes != data_bytes:
        raise InvalidArgument("the tensor's header is damaged")
    if raw.nbytes < header.object_bytes:
        raise InvalidArgument(f"the tensor has {header.object_bytes} bytes, here are only {raw.nbytes}")
    return header


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape + (-1,) * (MAX_DIMENSIONS - len(shape))


def _pack_axis(axis: Axis) -> bytes:
    numbers = (axis.split_dim, axis.expert_id, axis.stage_id)
    return _AXIS.pack(KINDS.index(axis.kind), axis.rank, axis.size, *(-1 if each is None else each for each in numbers))


def _unpack_axis(raw: memoryview, position: int) -> Axis:
    kind, rank, size, *numbers = _AXIS.unpack_from(raw, _HEAD.size + position * _AXIS.size)
    if not 0 <= kind < len(KINDS):
        raise InvalidArgument("the tensor's header is damaged")
    split_dim, expert_id, stage_id = (None if each < 0 else each for each in numbers)
    return Axis(KINDS[kind], rank, size, split_dim, expert_id, stage_id)
