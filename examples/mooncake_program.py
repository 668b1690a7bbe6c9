"""A program written for Mooncake Store, on the pool: only the first import tells.

Start a master (``pykvpool master``), then: python examples/mooncake_program.py 127.0.0.1:7000
Without that import the same program runs as: pykvpool mooncake-shim -- python program.py 127.0.0.1:7000
"""

# ruff: noqa: I001 - the order of the imports is the point
import ctypes
import sys

import pykvpool_connector.mooncake.install  # noqa: F401 - from here on, mooncake.store is the pool's
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

MASTER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7000"

store = MooncakeDistributedStore()
code = store.setup("localhost", "P2PHANDSHAKE", 256 << 20, 64 << 20, "tcp", "", MASTER)
if code != 0:
    sys.exit(f"setup failed with code {code}: {store.last_error()}")

# Values as bytes.
store.put("greeting", b"hello, mooncake")
print(store.get("greeting").decode())

# Values in memory of our own, without a copy.
block = (ctypes.c_ubyte * 4096)(*range(256))
address = ctypes.addressof(block)
store.register_buffer(address, 2048)
store.register_buffer(address + 2048, 2048)
config = ReplicateConfig()
config.with_soft_pin = True
print("put_from:", store.put_from("block", address, 2048, config))
print("get_into:", store.get_into("block", address + 2048, 2048), "bytes, the same:", block[:2048] == block[2048:])
print("is_exist:", store.batch_is_exist(["greeting", "block", "nothing"]))

# More than a number, where it is wanted.
print("a miss is", store.get_size("nothing"), "because:", store.last_error())
store.close()
