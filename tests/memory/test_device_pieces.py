"""GPU memory of any library becomes a piece without looking at a byte of it, or an error that says what to do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pykvpool.errors import InvalidArgument, NotSupported
from pykvpool.memory.buffers import as_piece, as_pieces, take
from pykvpool.memory.device import DevicePiece, cut, gpu_buffer, operands
from tests.memory.fake_gpu import FakeCudaTensor, FakeGpu


class Array:
    """What cupy and numba give."""

    def __init__(self, **interface: object) -> None:
        whole = {"shape": (2, 3), "typestr": "<f4", "data": (0x7000, False), "version": 3, **interface}
        self.__cuda_array_interface__ = {key: value for key, value in whole.items() if value != "left out"}


def test_a_cuda_tensor_becomes_its_address_and_length() -> None:
    tensor = FakeGpu().tensor(b"12345")
    [piece] = as_pieces(tensor)
    assert isinstance(piece, DevicePiece)
    assert (piece.address, piece.nbytes) == (tensor.data_ptr(), 5)


def test_a_piece_keeps_its_tensor_alive() -> None:
    tensor = FakeGpu().tensor(b"12345")
    [piece] = as_pieces(tensor)
    assert piece[1:3].owner is tensor


def test_a_piece_slices_like_a_view_of_bytes() -> None:
    piece = DevicePiece(1000, 10, after=7)
    assert piece[2:5] == DevicePiece(1002, 3, after=7)
    assert (piece[:20].nbytes, piece[-3:].address, piece[8:3].nbytes) == (10, 1007, 0)
    with pytest.raises(InvalidArgument, match="cut into runs"):
        piece[::2]


def test_an_array_interface_is_read_with_its_stream() -> None:
    [piece] = as_pieces(Array(stream=9), writable=True)
    assert (piece.address, piece.nbytes, piece.stream, piece.after) == (0x7000, 24, 9, None)
    [piece] = as_pieces(Array(stream=None, strides=(12, 4)))
    assert piece.stream == 0
    for shape, strides in [((1, 3), (999, 4)), ((2, 1), (4, 999)), ((), ()), ((0, 3), (1, 1))]:
        [piece] = as_pieces(Array(shape=shape, strides=strides))
        assert piece.nbytes % 4 == 0


@pytest.mark.parametrize(
    ("interface", "reason"),
    [
        ({"strides": (4, 8)}, "not C-contiguous"),
        ({"strides": (4,)}, "not C-contiguous"),
        ({"strides": (24, 4)}, "not C-contiguous"),
        ({"data": (1, True)}, "read-only"),
        ({"data": "left out"}, "malformed"),
        ({"typestr": "f"}, "malformed"),
        ({"shape": None}, "malformed"),
    ],
)
def test_an_array_that_cannot_be_used_is_refused_with_the_reason(interface: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        as_pieces(Array(**interface), writable=True)


def test_a_tensor_with_gaps_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not contiguous"):
        as_pieces(FakeCudaTensor(FakeGpu().allocate(4), contiguous=False))


def test_where_only_host_memory_will_do_a_gpu_tensor_is_refused() -> None:
    with pytest.raises(NotSupported, match=r"'cuda'.*copy it to the host"):
        as_piece(FakeGpu().tensor(b"1"))


@pytest.mark.parametrize("event", [77, SimpleNamespace(cuda_event=77), SimpleNamespace(handle=77)])
def test_an_engine_names_its_event_in_the_form_that_its_library_has(event: object) -> None:
    piece = gpu_buffer(FakeGpu().tensor(b"1234"), after=event)
    assert piece.after == 77
    assert event in piece.owner  # an event that was destroyed could not be waited for


def test_an_engine_may_name_its_stream_instead() -> None:
    piece = gpu_buffer(Array(stream=9))
    assert (piece.stream, gpu_buffer(piece, stream=5).stream, gpu_buffer(piece, stream=0).stream) == (9, 5, 0)


@pytest.mark.parametrize("event", ["77", SimpleNamespace(cuda_event=None), True, object()])
def test_what_is_no_event_is_refused(event: object) -> None:
    with pytest.raises(InvalidArgument, match="is not an event, or not recorded yet"):
        gpu_buffer(FakeGpu().tensor(b"1234"), after=event)


def test_host_memory_is_no_gpu_buffer() -> None:
    with pytest.raises(InvalidArgument, match="a bytearray is not in GPU memory"):
        gpu_buffer(bytearray(4))


def test_host_and_gpu_pieces_may_be_mixed_and_cut() -> None:
    tensor = FakeGpu().tensor(b"12345678")
    pieces = as_pieces([b"header", tensor, b"tail"])
    assert [type(piece).__name__ for piece in pieces] == ["memoryview", "DevicePiece", "memoryview"]
    assert [piece.nbytes for piece in take(pieces, 9)] == [6, 3]
    middle = cut(pieces, 4, 12)
    assert [piece.nbytes for piece in middle] == [2, 8, 2]
    assert (bytes(middle[0]), middle[1], bytes(middle[2])) == (b"er", tensor.piece, b"ta")


def test_operations_name_gpu_memory_apart_from_host_memory() -> None:
    host, device = memoryview(b"x"), DevicePiece(1, 1)
    assert operands([host]).host == [host] and not operands([host]).device
    assert operands([host, device]).device == [host, device] and not operands([host, device]).host
