"""How user values become *pieces*: lists of flat, C-contiguous memoryviews of bytes, all that most fabrics know.

Anything with the buffer protocol is welcome (bytes, bytearray, memoryview, array, numpy, mmap), CPU tensors that have
none (recognised by their methods; no tensor library is imported), and any sequence of those. GPU memory has no
memoryview; it becomes a `DevicePiece` (`pykvpool.memory.device`), and `as_pieces` takes both. `BufferRegistry` keeps
the buffers that a user registered, and finds them by address for callers that speak in pointers.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from pykvpool.errors import InvalidArgument, LimitExceeded, NotSupported
from pykvpool.memory.copying import bytes_at, pinned
from pykvpool.memory.device import DevicePiece, Piece, TensorLike, device_of, device_piece

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Most pieces of one object: 61 layers x key and value x a few parts, with room to spare.
MAX_PIECES = 16_384
#: Most buffers registered at a time.
MAX_REGISTERED = 65_536


P = TypeVar("P", memoryview, DevicePiece, Piece)


def as_piece(value: object, *, writable: bool = False) -> memoryview:
    """One buffer in host memory as a flat view of its bytes; no copy.

    Raises:
        InvalidArgument: not a buffer, not C-contiguous, or read-only although `writable`.
        NotSupported: a tensor that is not in host memory.
    """
    if isinstance(value, str):
        raise InvalidArgument("text is not a buffer: encode it to bytes first")
    try:
        view = memoryview(cast("Buffer", value))
    except TypeError:
        if not isinstance(value, TensorLike):
            raise InvalidArgument(
                f"a {type(value).__name__} is not a buffer: give bytes, a bytearray, a numpy array or a CPU tensor"
            ) from None
        return _tensor_piece(value)
    except (ValueError, BufferError) as error:
        raise InvalidArgument(f"this {type(value).__name__} gives no buffer: {error}") from error
    if not view.c_contiguous:
        raise InvalidArgument(f"this {type(value).__name__} is not C-contiguous: copy it to a contiguous one first")
    if writable and view.readonly:
        raise InvalidArgument(f"this {type(value).__name__} is read-only: bytes cannot be read into it")
    if not view.nbytes:
        return memoryview(bytearray())
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")


def as_any_piece(value: object, *, writable: bool = False) -> Piece:
    """One buffer in host or GPU memory as a piece; no copy. Raises as `as_piece`, but takes CUDA tensors."""
    try:
        memoryview(cast("Buffer", value))
    except (TypeError, ValueError, BufferError):  # no host memory, or one that `as_piece` refuses with the reason
        device = device_piece(value, writable=writable)
        if device is not None:
            return device
    return as_piece(value, writable=writable)


def as_pieces(data: object, *, writable: bool = False) -> list[Piece]:
    """A buffer, or a list or tuple of buffers, in host or GPU memory or both, as pieces in order; no copy.

    Raises as `as_piece` (naming the piece), and `LimitExceeded`.
    """
    if not isinstance(data, (list, tuple)):
        return [as_any_piece(data, writable=writable)]
    if len(data) > MAX_PIECES:
        raise LimitExceeded(f"{len(data)} pieces for one object: at most {MAX_PIECES}")
    pieces: list[Piece] = []
    for position, value in enumerate(data):
        try:
            pieces.append(as_any_piece(value, writable=writable))
        except InvalidArgument as error:
            raise type(error)(f"piece {position}: {error.message}", **error.fields) from error
    return pieces


def take(pieces: Sequence[P], length: int) -> list[P]:
    """The first `length` bytes of `pieces`, as pieces. Raises `InvalidArgument` where there are fewer."""
    taken: list[P] = []
    missing = length
    for piece in pieces:
        if missing <= 0:
            break
        part = piece if piece.nbytes <= missing else piece[:missing]
        taken.append(part)
        missing -= part.nbytes
    if missing > 0 or length < 0:
        raise InvalidArgument(f"buffers of {length - missing} bytes are too small for {length}", size_bytes=length)
    return taken


def _tensor_piece(tensor: TensorLike) -> memoryview:
    if device_of(tensor) != "cpu":
        raise NotSupported(f"a tensor on {device_of(tensor)!r} is not in host memory: copy it to the host first")
    if not tensor.is_contiguous():
        raise InvalidArgument("this tensor is not contiguous: call .contiguous() first")
    return bytes_at(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)


@dataclass(frozen=True, slots=True)
class RegisteredBuffer:
    """Host memory that a user promised to keep in place. `address` is that of its first byte."""

    address: int
    size_bytes: int
    view: memoryview

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.size_bytes


class BufferRegistry:
    """The registered buffers of one client, found by object or by address. They never overlap."""

    def __init__(self) -> None:
        #: Addresses in rising order; one for each entry of `_buffers`.
        self._addresses: list[int] = []
        self._buffers: dict[int, RegisteredBuffer] = {}
        #: Told of each buffer that is taken back, before its memory is the user's own again.
        self._watchers: list[Callable[[RegisteredBuffer], None]] = []

    def __len__(self) -> int:
        return len(self._buffers)

    def register(self, buffer: object) -> RegisteredBuffer:
        """Keep a writable buffer until it is unregistered; the same one again gives the same registration.

        Raises:
            InvalidArgument: not a writable contiguous buffer, empty, or overlapping another registered one.
            LimitExceeded: `MAX_REGISTERED` are registered.
        """
        view = as_piece(buffer, writable=True)
        with pinned(view, writable=True) as address:
            registered = RegisteredBuffer(address, view.nbytes, view)
        if not view.nbytes:
            raise InvalidArgument("an empty buffer cannot be registered")
        known = self._buffers.get(address)
        if known is not None and known.size_bytes == registered.size_bytes:
            return known
        if len(self._buffers) >= MAX_REGISTERED:
            raise LimitExceeded(f"{MAX_REGISTERED} buffers are registered: unregister some, or register larger ones")
        place = bisect_right(self._addresses, address)
        before = self._buffers[self._addresses[place - 1]] if place else None
        after = self._buffers[self._addresses[place]] if place < len(self._addresses) else None
        if (before is not None and before.end > address) or (after is not None and registered.end > after.address):
            raise InvalidArgument(
                f"the {view.nbytes} bytes at {address:#x} overlap a buffer that is registered already"
            )
        insort(self._addresses, address)
        self._buffers[address] = registered
        return registered

    def unregister(self, registered: RegisteredBuffer) -> None:
        """Forget it; its memory is the user's own again once no transfer uses it. Harmless twice."""
        if self._buffers.get(registered.address) is registered:
            del self._buffers[registered.address]
            self._addresses.remove(registered.address)
            for on_unregister in list(self._watchers):
                on_unregister(registered)

    def watch(self, on_unregister: Callable[[RegisteredBuffer], None]) -> None:
        """Call back for each buffer that is taken back: whoever keeps something for it lets go."""
        self._watchers.append(on_unregister)

    def unwatch(self, on_unregister: Callable[[RegisteredBuffer], None]) -> None:
        self._watchers.remove(on_unregister)

    def holder(self, address: int, length: int) -> RegisteredBuffer | None:
        """The one registered buffer in which the `length` bytes at `address` lie, None where there is none."""
        place = bisect_right(self._addresses, address)
        holder = self._buffers[self._addresses[place - 1]] if place else None
        return None if length < 0 or holder is None or address + length > holder.end else holder

    def find(self, address: int, length: int) -> memoryview:
        """The `length` bytes at `address`, which must lie within one registered buffer. Raises `InvalidArgument`."""
        holder = self.holder(address, length)
        if holder is None:
            raise InvalidArgument(f"the {length} bytes at {address:#x} are not within one registered buffer")
        return holder.view[address - holder.address : address - holder.address + length]
