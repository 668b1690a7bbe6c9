"""Memory that a simulated node lends: plain bytes that the NIC reaches while the process is paused, and that are gone
when it is dead. Checkers look at it directly; faults flip bits in it.
"""

from __future__ import annotations

from collections.abc import Callable

from pykvpool.errors import Closed
from pykvpool.model.ids import Generation
from pykvpool.runtime import Runtime


class SimMemory:
    """One mount; the simulator's `pykvpool.memory.segment.MemorySegment`."""

    def __init__(
        self, size_bytes: int, runtime: Runtime, on_close: Callable[[SimMemory], None] = lambda memory: None
    ) -> None:
        """`on_close` is told when the memory is given back."""
        self._on_close = on_close
        self.generation = Generation(runtime.new_incarnation())
        self.size_bytes = size_bytes
        #: Who has mapped it keeps it, also when it is closed.
        self._bytes = bytearray(size_bytes)
        #: The whole memory; None once closed.
        self._view: memoryview | None = memoryview(self._bytes)

    @property
    def view(self) -> memoryview:
        """Raises `Closed` after `close`."""
        if self._view is None:
            raise Closed("the memory was given back")
        return self._view

    @property
    def closed(self) -> bool:
        return self._view is None

    def mapped(self, offset: int, length: int) -> memoryview:
        """A part of it, to look at: it stays what it is when its owner closes the memory, or dies."""
        return memoryview(self._bytes)[offset : offset + length].toreadonly()

    def is_behind(self, view: memoryview) -> bool:
        """Does the view show this memory?"""
        return view.obj is self._bytes

    def fileno(self) -> int:
        """There is no file behind it."""
        return -1

    def flip(self, offset: int, bit: int) -> None:
        """A bit decays."""
        self.view[offset] ^= 1 << bit

    def close(self) -> None:
        if self._view is not None:
            self._on_close(self)
            self._view.release()
            self._view = None
