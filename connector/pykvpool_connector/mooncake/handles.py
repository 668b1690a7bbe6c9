"""What `get_buffer` gives: memory of its own that speaks Python's buffer protocol.

A `bytearray` underneath, so that ``memoryview(handle)``, ``numpy.frombuffer(handle)`` and ``torch.frombuffer(handle)``
work on every Python version, without a copy; it is filled by the fabric and lives as long as anything refers to it,
also after its store was closed.
"""

from __future__ import annotations

import ctypes

from pykvpool.memory.copying import pinned

_resize = ctypes.pythonapi.PyByteArray_Resize
_resize.argtypes = [ctypes.py_object, ctypes.c_ssize_t]
_resize.restype = ctypes.c_int


class BufferHandle(bytearray):
    """The bytes of one object."""

    @classmethod
    def of_size(cls, size_bytes: int) -> BufferHandle:
        """Memory with undefined contents, to be filled: zeroing it first would be a trip to memory for nothing."""
        handle = cls()
        _resize(handle, size_bytes)
        return handle

    def ptr(self) -> int:
        """Address of the first byte; valid as long as this handle lives and is not resized."""
        with pinned(self) as address:
            return address

    def size(self) -> int:
        """Size in bytes."""
        return len(self)

    def __repr__(self) -> str:
        return f"<BufferHandle of {len(self)} bytes>"
