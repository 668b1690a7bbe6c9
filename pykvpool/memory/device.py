"""Pieces of GPU memory: an address, a length, and when the engine is done with it. No driver is touched here.

A GPU's memory has no `memoryview`: the CPU cannot look at it. So it travels through the client as a `DevicePiece`
beside the memoryviews of host memory, and only who can move it (`pykvpool.memory.cuda`, a fabric that drives a NIC)
looks inside. Tensors are recognised by their methods, arrays by ``__cuda_array_interface__``; no GPU library is
imported.

**Order.** A GPU works behind its engine's back: when Python says "put this tensor", the kernel that fills it may not
have run. So each piece carries an event that the engine recorded on its stream when it had enqueued that work
(`after`), or the stream itself (`stream`), on which one is recorded when the transfer begins. The same holds for memory
to read into: what uses the old bytes must be done first. The other direction needs nothing: a transfer is over when its
bytes are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol, SupportsInt, cast, runtime_checkable

from pykvpool.errors import InvalidArgument

#: The legacy default stream: where PyTorch and most programs work unless they chose another.
DEFAULT_STREAM = 0


@runtime_checkable
class TensorLike(Protocol):
    """What we need of a tensor (torch's method names)."""

    def data_ptr(self) -> int: ...

    def numel(self) -> int: ...

    def element_size(self) -> int: ...

    def is_contiguous(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class DevicePiece:
    """`nbytes` bytes of GPU memory at `address` (a device pointer). Slices like a flat memoryview of bytes."""

    address: int
    nbytes: int
    #: Handle of a CUDA event that must be reached before the memory is used; None: one is recorded on `stream`.
    after: int | None = None
    #: Handle of the stream on which the memory's latest work was enqueued.
    stream: int = DEFAULT_STREAM
    #: What keeps the memory and the event alive.
    owner: object = field(default=None, repr=False, compare=False)

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.nbytes

    def __getitem__(self, part: slice) -> DevicePiece:
        start, stop, step = part.indices(self.nbytes)
        if step != 1:
            raise InvalidArgument("GPU memory is cut into runs: a slice with a step is none")
        return DevicePiece(self.address + start, max(0, stop - start), self.after, self.stream, self.owner)


#: A stretch of memory of either kind.
Piece = memoryview | DevicePiece


@dataclass(frozen=True, slots=True)
class Operands:
    """An object's pieces as a fabric operation takes them: `host` alone, or all of them in `device`."""

    host: Sequence[memoryview]
    device: Sequence[Piece]


def operands(pieces: Sequence[Piece]) -> Operands:
    """All pieces as `host` where none is GPU memory, else all as `device`."""
    host = [piece for piece in pieces if isinstance(piece, memoryview)]
    return Operands(host, ()) if len(host) == len(pieces) else Operands((), pieces)


def cut(pieces: Sequence[Piece], start: int, length: int) -> list[Piece]:
    """The `length` bytes from `start` on of pieces in order, which must hold them."""
    found: list[Piece] = []
    for piece in pieces:
        first, last = max(0, start), min(piece.nbytes, start + length)
        if first < last:
            found.append(piece[first:last])
        start -= piece.nbytes
    return found


def gpu_buffer(
    value: object, *, after: object = None, stream: int | None = None, writable: bool = False
) -> DevicePiece:
    """GPU memory of a tensor or array as a piece, with when it may be used. No copy.

    Args:
        value: a contiguous CUDA tensor (torch), an array with ``__cuda_array_interface__`` (cupy, numba), or a piece.
        after: an event recorded on the engine's stream: a `torch.cuda.Event`, a `cuda.core.Event`, or its handle.
        stream: handle of the engine's stream (torch: ``torch.cuda.current_stream().cuda_stream``), for callers who
            recorded no event: work that is on it when the transfer begins is waited for, so rather more than needed.
            None: the stream that the array names, else the default stream.
        writable: refuse read-only arrays.

    Raises:
        InvalidArgument: no GPU memory, not contiguous, or read-only although `writable`.
    """
    piece = device_piece(value, writable=writable)
    if piece is None:
        raise InvalidArgument(f"a {type(value).__name__} is not in GPU memory")
    event = piece.after if after is None else _handle(after, ("cuda_event", "handle"), "an event")
    return DevicePiece(
        piece.address, piece.nbytes, event, piece.stream if stream is None else stream, (piece.owner, after)
    )


def device_piece(value: object, *, writable: bool = False) -> DevicePiece | None:
    """`value` as GPU memory, None where it is none. Raises `InvalidArgument` where it is, but cannot be used."""
    if isinstance(value, DevicePiece):
        return value
    if isinstance(value, TensorLike) and device_of(value) == "cuda":
        if not value.is_contiguous():
            raise InvalidArgument("this tensor is not contiguous: call .contiguous() first")
        return DevicePiece(value.data_ptr(), value.numel() * value.element_size(), owner=value)
    if isinstance(value, TensorLike):
        return None
    interface = getattr(value, "__cuda_array_interface__", None)
    return _array_piece(value, interface, writable) if isinstance(interface, Mapping) else None


def device_of(tensor: TensorLike) -> str:
    """Kind of the device that holds a tensor: "cpu", "cuda", ..."""
    return str(getattr(getattr(tensor, "device", None), "type", "cpu"))


def _array_piece(value: object, interface: Mapping[str, object], writable: bool) -> DevicePiece:
    """By version 3 of the interface (numba's documentation); earlier ones name no stream."""
    try:
        address, readonly = cast("tuple[int, bool]", interface["data"])
        shape = tuple(int(length) for length in cast("tuple[int, ...]", interface["shape"]))
        item_bytes = int(str(interface["typestr"])[2:])
        strides = cast("tuple[int, ...] | None", interface.get("strides"))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"the __cuda_array_interface__ of this {type(value).__name__} is malformed") from error
    if strides is not None and not _is_contiguous(shape, tuple(strides), item_bytes):
        raise InvalidArgument(f"this {type(value).__name__} is not C-contiguous: copy it to a contiguous one first")
    if writable and readonly:
        raise InvalidArgument(f"this {type(value).__name__} is read-only: bytes cannot be read into it")
    stream = interface.get("stream")
    # 1 and 2 are the driver's own handles of the legacy and the per-thread default stream.
    return DevicePiece(
        int(address or 0),
        prod(shape) * item_bytes,
        stream=stream if isinstance(stream, int) else DEFAULT_STREAM,
        owner=value,
    )


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> bool:
    """In C's order. The stride of a dimension of length 1 is never used, so it may be anything."""
    if len(shape) != len(strides):
        return False
    step = item_bytes
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != step and 0 not in shape:
            return False
        step *= length
    return True


def _handle(value: object, names: tuple[str, ...], what: str) -> int:
    """The number behind a handle: itself, or what an object of a GPU library calls it."""
    for candidate in (value, *(getattr(value, name, None) for name in names)):
        if candidate is None or isinstance(candidate, bool):
            continue
        if isinstance(candidate, SupportsInt):  # cuda.bindings' handles convert
            return int(candidate)
    raise InvalidArgument(f"a {type(value).__name__} is not {what}, or not recorded yet: give its CUDA handle")
