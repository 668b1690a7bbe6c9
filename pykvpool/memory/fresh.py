"""A `bytes` object to read into: allocated without being filled, written once, then immutable as any other.

CPython's C API allows this for a bytes object that nobody else has seen yet (PyBytes_FromStringAndSize with NULL). It
saves the zeroing of a bytearray and the copy from it.
"""

from __future__ import annotations

import ctypes

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]
_new_bytes.restype = ctypes.py_object

_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.argtypes = [ctypes.py_object]
_address_of.restype = ctypes.c_void_p


def fresh_bytes(size_bytes: int) -> tuple[bytes, memoryview]:
    """New bytes of `size_bytes` (at least 1) with undefined contents, and a writable view of them.

    Fill the view completely before the bytes object is shown to anyone, then drop it: the view does not keep the bytes
    alive, and bytes that were already hashed or shared must never change.
    """
    value: bytes = _new_bytes(None, size_bytes)
    target = (ctypes.c_char * size_bytes).from_address(_address_of(value))
    return value, memoryview(target).cast("B")
