"""The asynchronous twin: every method with ``async_`` in front, awaited."""

import asyncio

from mooncake.async_store import MooncakeDistributedStoreAsync
from observe import MASTER, METADATA, MIB, attempt, note, registered


async def main():
    store = MooncakeDistributedStoreAsync()
    note("async_setup", await store.async_setup("localhost", METADATA, 64 * MIB, 16 * MIB, "tcp", "", MASTER))
    await store.async_remove_all(True)
    note("async_put", await store.async_put("a", b"awaited"))
    note("async_get", await store.async_get("a"))
    note("async calls at once", await asyncio.gather(*[store.async_put(f"k{i}", b"x") for i in range(20)]))
    note("async_batch_is_exist", await store.async_batch_is_exist(["a", "k1", "nobody"]))
    _block, at = registered(store, 4096, 7)
    note("async_put_from", await store.async_put_from("z", at, 4096))
    note("async_get_into", await store.async_get_into("z", at, 4096))
    note("the plain methods are there too", store.get("a"))
    note("an unknown method", attempt(lambda: store.async_nothing))
    note("async_close", await store.async_close())


asyncio.run(main())
