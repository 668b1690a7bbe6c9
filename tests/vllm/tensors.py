"""Tensors without torch: views of real memory by shape and strides, laid out as vLLM lays out its caches."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from pykvpool.host.port import Run

#: Long beside the distances between blocks, layers and heads that tests use.
_PATTERN = b"".join(number.to_bytes(2, "big") for number in range(1, 65_522))


class Memory:
    """One allocation, filled with a pattern in which every two bytes are another number."""

    def __init__(self, size: int) -> None:
        self.buffer = ctypes.create_string_buffer((_PATTERN * (size // len(_PATTERN) + 1))[:size], size)
        self.base = ctypes.addressof(self.buffer)
        self.size = size

    def data_ptr(self) -> int:
        return self.base

    def nbytes(self) -> int:
        return self.size


@dataclass
class View:
    """Strides are in elements, as torch's are."""

    memory: Memory
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    unit: int = 1
    dtype: str = "torch.float32"
    device: Any = field(default_factory=lambda: SimpleNamespace(type="cpu"))

    def data_ptr(self) -> int:
        return self.memory.base + self.offset

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def element_size(self) -> int:
        return self.unit

    def untyped_storage(self) -> Memory:
        return self.memory

    def element(self, *at: int) -> bytes:
        place = self.data_ptr() + self.unit * sum(index * step for index, step in zip(at, self.strides, strict=True))
        return ctypes.string_at(place, self.unit)


def caches(
    layout: str,
    *,
    layers: Sequence[str],
    blocks: int,
    heads: int,
    tokens: int,
    content: int,
    unit: int = 4,
    pieces: int = 1,
    padding: int = 0,
    **more: Any,
) -> dict[str, View]:
    """A view of each layer of one memory, whose dimensions lie in the order of `layout` (letters L, B, H, N, C).

    Blocks are cut into `pieces`, as attention kernels want them, and pages padded at their end where `layout` begins
    with L and B. `content` counts elements of `unit` bytes.
    """
    sizes = {"L": len(layers), "B": blocks * pieces, "H": heads, "N": tokens // pieces, "C": content}
    strides: dict[str, int] = {}
    step = 1
    for letter in reversed(layout):
        if letter == "B":
            step += padding
        strides[letter] = step
        step *= sizes[letter]
    memory = Memory(step * unit)
    return {
        layer: View(
            memory,
            number * strides["L"] * unit,
            tuple(sizes[letter] for letter in "BHNC"),
            tuple(strides[letter] for letter in "BHNC"),
            unit,
            **more,
        )
        for number, layer in enumerate(layers)
    }


def block_bytes(runs: Sequence[Run], block: int) -> bytes:
    """What an object of this block holds."""
    return b"".join(ctypes.string_at(run.base + block * run.stride, run.length) for run in runs)
