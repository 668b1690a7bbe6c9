"""A whole pool in this process: a master, one node, and a client, over the ``inproc`` transport and fabric.

For tests, notebooks and learning: everything is the real thing but for the network. It sits above master, node and
client because it is the one place that puts all three together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import Any

from pykvpool.client import Client, SyncClient
from pykvpool.client.sync import LoopThread
from pykvpool.core.config import CoreConfig
from pykvpool.core.master import MasterCore
from pykvpool.errors import InvalidArgument
from pykvpool.fabric.registry import ServerSettings, build_servers
from pykvpool.master import MasterServer
from pykvpool.node import Node, NodeSettings
from pykvpool.runtime import Runtime, real_runtime

#: What an embedded pool lends unless told otherwise; memory is taken when it is first written.
DEFAULT_SIZE_BYTES = 256 << 20


class EmbeddedPool:
    """Master and nodes of an embedded pool; `address` is for `Client.connect`. An async context manager."""

    def __init__(
        self,
        *,
        size_bytes: int = DEFAULT_SIZE_BYTES,
        nodes: int = 1,
        config: CoreConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if nodes < 1:
            raise InvalidArgument(f"an embedded pool has at least one node, not {nodes}")
        self._runtime = runtime or real_runtime()
        self._owns_runtime = runtime is None
        #: Two embedded pools in one process do not meet.
        number = self._runtime.new_incarnation()
        self.address = f"inproc://pykvpool-{number:x}"
        self.core = MasterCore(config or CoreConfig(), epoch=number)
        self.master = MasterServer(self.core, [self.address], self._runtime)
        self.nodes = [self._node(f"node-{i}", size_bytes) for i in range(nodes)]
        self._stack = contextlib.AsyncExitStack()

    def _node(self, name: str, size_bytes: int) -> Node:
        servers = build_servers(("inproc",), ServerSettings(self._runtime))
        return Node(NodeSettings(name, (self.address,), size_bytes), servers, self._runtime)

    async def start(self) -> None:
        """Bring up the master, then the nodes."""
        if self._owns_runtime:
            self._stack.callback(self._runtime.offload.close)
        await self.master.start()
        self._stack.push_async_callback(self.master.close)
        for node in self.nodes:
            await node.start()
            self._stack.push_async_callback(node.stop)

    async def stop(self) -> None:
        """Nodes first, then the master. Harmless twice."""
        await self._stack.aclose()

    async def connect(self, **options: Any) -> Client:
        """A client of this pool; options as for `Client.connect`."""
        options.setdefault("fabrics", ("inproc",))
        return await Client.connect(self.address, runtime=self._runtime, **options)

    async def __aenter__(self) -> EmbeddedPool:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()


def connect(
    address: str | list[str] = "inproc://",
    *,
    size_bytes: int | None = None,
    nodes: int | None = None,
    **options: Any,
) -> SyncClient:
    """A blocking client of the pool at `address`, or of a new embedded pool where that is ``inproc://``.

        pool = pykvpool.connect("inproc://")
        pool.put("key", b"bytes")
        assert pool.get("key") == b"bytes"

    Args:
        address: of a master (``tcp://host:port``, ``unix:///path``), or several; ``inproc://`` makes a pool of its own.
        size_bytes, nodes: of an embedded pool: memory per node (default 256 MiB, used as it fills) and number of nodes.
        options: as for `Client.connect` (token, namespace, replicas, timeout_s, ...).

    Raises:
        InvalidArgument: size or nodes for a pool that exists already.
        Unavailable, Refused: see `Client.connect`.
    """
    if address != "inproc://":
        if size_bytes is not None or nodes is not None:
            raise InvalidArgument("size_bytes and nodes belong to an embedded pool: use the address inproc://")
        return SyncClient.connect(address, **options)
    thread = LoopThread()

    async def begin() -> tuple[EmbeddedPool, Client]:
        pool = EmbeddedPool(
            size_bytes=DEFAULT_SIZE_BYTES if size_bytes is None else size_bytes, nodes=1 if nodes is None else nodes
        )
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(pool)
            client = await pool.connect(**options)
            stack.pop_all()
        return pool, client

    try:
        pool, client = thread.run(begin())
    except BaseException:
        thread.stop()
        raise

    def after() -> Coroutine[object, object, None]:
        return pool.stop()

    return SyncClient(client, thread, after)
