"""What the programs here share: where the master is, a store that is set up, and saying what was seen.

The programs are written for Mooncake's Python API and know nothing of pykvpool. Each prints one JSON line per
observation; whoever runs them compares the lines.
"""

import ctypes
import json
import os

from mooncake.store import MooncakeDistributedStore

MASTER = os.environ["PROGRAM_MASTER"]
METADATA = "P2PHANDSHAKE"
MIB = 1 << 20


def note(name, value):
    """Say what was seen. Values are shown as Python shows them, so that b"" and None and 0 differ."""
    print(json.dumps([name, repr(value)]), flush=True)


def attempt(call):
    """The result of a call, or the kind of its exception."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what we observe
        return f"raises {type(error).__name__}"


def open_store(segment=64 * MIB, buffer=16 * MIB, hostname="localhost", **more):
    """A store that is set up; the pool is empty where it is the first."""
    store = MooncakeDistributedStore()
    code = store.setup(hostname, METADATA, segment, buffer, "tcp", "", MASTER, **more)
    assert code == 0, f"setup: {code}"
    return store


def memory(size, fill=0):
    """Memory of our own, and its address."""
    block = (ctypes.c_ubyte * size).from_buffer(bytearray([fill]) * size)
    return block, ctypes.addressof(block)


def registered(store, size, fill=0):
    """Memory that the store may use."""
    block, address = memory(size, fill)
    code = store.register_buffer(address, size)
    assert code == 0, f"register_buffer: {code}"
    return block, address


def pattern(size, seed=1):
    """Bytes in which a misplaced part shows."""
    return bytes((i * 31 + seed * 17) % 251 for i in range(size))
