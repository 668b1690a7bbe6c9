"""Between torch's tensors and their stored form; torch is imported when the first tensor comes along."""

from __future__ import annotations

from typing import Any

from pykvpool.errors import InvalidArgument, NotSupported
from pykvpool.memory.buffers import as_piece
from pykvpool_connector.mooncake.tensor_format import HEADER_BYTES, Axis, TensorHeader, parse

#: A torch.Tensor; torch is optional, so its type has no name here.
Tensor = Any


def torch() -> Any:
    """The module. Raises `NotSupported` where it is not installed."""
    try:
        import torch as module
    except ImportError:
        raise NotSupported("tensors need torch: pip install torch") from None
    return module


def check_tensor(tensor: object) -> Tensor:
    """Raises `NotSupported` without torch, `InvalidArgument` for what is no tensor."""
    if not isinstance(tensor, torch().Tensor):
        raise InvalidArgument(f"a torch.Tensor is needed, not a {type(tensor).__name__}")
    return tensor


def stored_form(
    tensor: object, axes: tuple[Axis, ...] = (), whole_shape: tuple[int, ...] | None = None
) -> tuple[list[memoryview], Tensor]:
    """Header and elements as pieces, and what keeps them alive; copied only where not contiguous, or on a GPU.

    Raises `InvalidArgument`, `NotSupported` (dtype, no torch).
    """
    dense = check_tensor(tensor).detach().cpu().contiguous()
    shape = tuple(dense.shape)
    header = TensorHeader(str(dense.dtype).removeprefix("torch."), whole_shape or shape, shape, axes)
    packed = header.pack()
    pieces = [memoryview(packed)]
    if header.data_bytes:
        pieces.append(as_piece(_raw_bytes(dense)))
    return pieces, dense


def from_memory(memory: memoryview) -> tuple[TensorHeader, Tensor]:
    """The tensor at the start of writable memory, over that memory. Raises `InvalidArgument`, `NotSupported`."""
    header = parse(memory)
    module = torch()
    dtype = getattr(module, header.dtype, None)
    if dtype is None:
        raise NotSupported(f"this torch has no dtype {header.dtype}")
    if not header.elements:
        return header, module.empty(header.shape, dtype=dtype)
    flat = module.frombuffer(memory, dtype=dtype, count=header.elements, offset=HEADER_BYTES)
    return header, flat.reshape(header.shape)


def _raw_bytes(dense: Tensor) -> Tensor:
    """The elements as a flat tensor of bytes over the same memory (numpy-less, and for every dtype)."""
    return dense.reshape(-1).view(torch().uint8)
