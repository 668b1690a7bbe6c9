"""How a store begins and ends: the forms of setup, pure clients, no buffer, closing and beginning anew."""

from mooncake.store import MooncakeDistributedStore
from observe import MASTER, METADATA, MIB, attempt, note, open_store, registered

base = {"local_hostname": "localhost", "metadata_server": METADATA, "master_server_addr": MASTER}
stores = []


def setup(table):
    """Set up with a dict; the store lives on, so that its memory does."""
    stores.append(MooncakeDistributedStore())
    return attempt(lambda: stores[-1].setup(table))


store = open_store(hostname="localhost:23456")
store.remove_all(True)
note("get_hostname with a port", store.get_hostname())
note("close", store.close())
note("close twice", store.close())
note("health_check after close", store.health_check())

store = open_store()
host, _, port = store.get_hostname().partition(":")
note("get_hostname without a port", (host, port.isdigit()))
store.put("old", b"bytes")
handle = store.get_buffer("old")
store.close()
note("a buffer of a closed store", bytes(memoryview(handle)))
code = store.setup("localhost", METADATA, 64 * MIB, 16 * MIB, "tcp", "", MASTER)
note("setup after close", code)
note("what the closed node held", (store.get("old"), store.is_exist("old")))
note("put after setup again", (store.put("new", b"more"), store.get("new")))
code = store.setup("localhost", METADATA, 64 * MIB, 16 * MIB, "tcp", "", MASTER)
note("setup of a store that is set up", (code, store.get("new")))

client = open_store(segment=0)
store.put("shared", b"between stores")
note("get by a pure client", client.get("shared"))
note("put by a pure client", (client.put("from-client", b"x"), store.get("from-client")))
client.close()
note("what a pure client put stays", store.get("from-client"))

unbuffered = open_store(buffer=0)
note("put without a local buffer", (unbuffered.put("n", b"x"), unbuffered.is_exist("n")))
note("get without a local buffer", unbuffered.get("shared"))
block, at = registered(unbuffered, 64, 5)
note("put_from without a local buffer", (unbuffered.put_from("zc", at, 64), store.get("zc") == bytes(block)))
unbuffered.close()

note("setup with a dict", setup({**base, "global_segment_size": "16MB", "local_buffer_size": "8MB", "protocol": "tcp"}))
note("a store set up with a dict works", (stores[-1].put("dict", b"x"), stores[-1].get("dict")))
note("setup with a dict of numbers", setup({**base, "global_segment_size": 16 * MIB, "local_buffer_size": MIB}))
note("setup with a dict of defaults", setup(dict(base)))
note("setup with an unknown key", setup({**base, "something_else": "1"}))
note("setup with a dict without a hostname", setup({"metadata_server": METADATA, "master_server_addr": MASTER}))
note("setup with a size that is none", setup({**base, "global_segment_size": "lots"}))
note("setup with a size with a space", setup({**base, "global_segment_size": "16 MB"}))
note("setup with a size in small letters", setup({**base, "global_segment_size": "16mb"}))
note("setup with too few arguments", attempt(lambda: MooncakeDistributedStore().setup("localhost", METADATA)))
tenant = open_store(tenant_id="another")
note("a tenant of its own", (tenant.put("shared", b"of the tenant"), tenant.get("shared")))
for each in [*stores, tenant]:
    each.close()
store.close()
