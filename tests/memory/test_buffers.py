"""Whatever users hand in becomes flat bytes without a copy, or an error that says what to do."""

from __future__ import annotations

import array
import ctypes
from types import SimpleNamespace

import pytest

from pykvpool.errors import InvalidArgument, LimitExceeded, NotSupported
from pykvpool.memory.buffers import MAX_PIECES, BufferRegistry, as_piece, as_pieces, take


class FakeTensor:
    """Host or device memory that has no buffer protocol, like a torch tensor."""

    def __init__(self, values: array.array[float], device: str = "cpu", contiguous: bool = True) -> None:
        self._values = values
        self._contiguous = contiguous
        self.device = SimpleNamespace(type=device)

    def data_ptr(self) -> int:
        return self._values.buffer_info()[0]

    def numel(self) -> int:
        return len(self._values)

    def element_size(self) -> int:
        return self._values.itemsize

    def is_contiguous(self) -> bool:
        return self._contiguous


@pytest.mark.parametrize(
    "value",
    [
        b"abcd",
        bytearray(b"abcd"),
        memoryview(b"abcd"),
        array.array("H", [0x6261, 0x6463]),
        (ctypes.c_char * 4)(*b"abcd"),
    ],
)
def test_any_buffer_is_seen_as_its_bytes(value: object) -> None:
    piece = as_piece(value)
    assert (piece.ndim, piece.format, bytes(piece)) == (1, "B", b"abcd")


def test_no_copy_is_made() -> None:
    data = bytearray(4)
    as_piece(data, writable=True)[2] = 9
    assert data[2] == 9


def test_a_grid_of_numbers_is_flattened() -> None:
    grid = memoryview(array.array("i", range(6))).cast("B").cast("i", (2, 3))
    assert as_piece(grid).nbytes == 24


def test_numpy_arrays_are_buffers() -> None:
    numpy = pytest.importorskip("numpy")
    values = numpy.arange(12, dtype=numpy.float16).reshape(3, 4)
    assert bytes(as_piece(values)) == values.tobytes()
    with pytest.raises(InvalidArgument, match="contiguous"):
        as_piece(values.T)


def test_a_cpu_tensor_is_taken_by_its_address_and_kept_alive() -> None:
    tensor = FakeTensor(array.array("f", [1.0, 2.0]))
    piece = as_piece(tensor, writable=True)
    assert bytes(piece) == tensor._values.tobytes()
    piece[:4] = bytes(4)
    assert tensor._values[0] == 0.0
    del tensor
    assert len(bytes(piece)) == 8


def test_a_tensor_elsewhere_or_not_contiguous_is_refused() -> None:
    with pytest.raises(NotSupported, match="cuda"):
        as_piece(FakeTensor(array.array("f", [1.0]), device="cuda"))
    with pytest.raises(InvalidArgument, match="contiguous"):
        as_piece(FakeTensor(array.array("f", [1.0]), contiguous=False))


def test_torch_tensors_of_any_type_are_seen_as_their_bytes() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(4, dtype=torch.bfloat16)
    assert bytes(as_piece(tensor)) == b"\x80\x3f" * 4


@pytest.mark.parametrize(
    ("value", "why"),
    [("text", "encode"), (17, "int"), (None, "NoneType"), (memoryview(b"abcd")[::2], "contiguous"), ({1}, "set")],
)
def test_what_is_no_buffer_is_refused_and_named(value: object, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        as_piece(value)


def test_elements_of_any_format_are_seen_as_their_bytes() -> None:
    big_endian = (ctypes.c_uint32.__ctype_be__ * 2)(1, 2)
    assert bytes(as_piece(big_endian)) == b"\0\0\0\1\0\0\0\2"


def test_read_only_memory_cannot_be_read_into() -> None:
    with pytest.raises(InvalidArgument, match="read-only"):
        as_pieces([bytearray(2), b"xx"], writable=True)


def test_a_sequence_becomes_its_pieces_in_order_and_a_bad_one_is_named_by_position() -> None:
    assert [bytes(piece) for piece in as_pieces([b"ab", bytearray(b"c"), b""])] == [b"ab", b"c", b""]
    assert [bytes(piece) for piece in as_pieces(b"one")] == [b"one"]
    with pytest.raises(InvalidArgument, match="piece 1"):
        as_pieces([b"", "x"])
    with pytest.raises(LimitExceeded):
        as_pieces([b""] * (MAX_PIECES + 1))


def test_taking_a_prefix_of_pieces_cuts_the_last_and_refuses_what_is_not_there() -> None:
    pieces = as_pieces([b"abc", b"def"])
    assert [bytes(piece) for piece in take(pieces, 4)] == [b"abc", b"d"]
    assert take(pieces, 0) == []
    for length in (7, -1):
        with pytest.raises(InvalidArgument):
            take(pieces, length)


def test_a_registered_buffer_is_found_by_address_and_bounds_are_kept() -> None:
    registry = BufferRegistry()
    data = bytearray(100)
    registered = registry.register(data)
    assert registry.register(data) is registered
    view = registry.find(registered.address + 10, 5)
    view[:] = b"hello"
    assert data[10:15] == b"hello"
    assert registry.find(registered.end, 0).nbytes == 0
    for address, length in (
        (registered.address + 96, 5),
        (registered.address - 1, 2),
        (registered.address, -1),
        (0, 1),
    ):
        with pytest.raises(InvalidArgument):
            registry.find(address, length)
    view.release()
    registry.unregister(registered)
    registry.unregister(registered)
    with pytest.raises(InvalidArgument):
        registry.find(registered.address, 1)


def test_registered_buffers_never_overlap() -> None:
    registry = BufferRegistry()
    data = memoryview(bytearray(100))
    registry.register(data[20:40])
    for overlapping in (data[:21], data[39:], data[25:30], data, data[20:41]):
        with pytest.raises(InvalidArgument, match="overlap"):
            registry.register(overlapping)
    registry.register(data[:20])
    registry.register(data[40:])
    assert len(registry) == 3


def test_only_writable_buffers_with_bytes_in_them_can_be_registered() -> None:
    registry = BufferRegistry()
    for buffer in (b"abc", bytearray(), "abc"):
        with pytest.raises(InvalidArgument):
            registry.register(buffer)
