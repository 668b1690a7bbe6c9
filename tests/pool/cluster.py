"""A whole pool in one process for tests: a real master, real nodes and clients over real fabrics and sockets.

`Cluster` validates the master's core after the test, so that a test that only looks at results still finds a broken
invariant.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from pykvpool.client import Client
from pykvpool.core.config import CoreConfig
from pykvpool.core.master import MasterCore
from pykvpool.fabric.rdma.settings import DEFAULT_SETTINGS, RdmaSettings
from pykvpool.fabric.registry import ServerSettings, build_servers
from pykvpool.master import MasterServer
from pykvpool.node import Node, NodeSettings
from pykvpool.runtime import Runtime, real_runtime

MIB = 1 << 20


@dataclass
class Cluster:
    """Start it with `async with`; nodes and clients are closed with it."""

    directory: Path
    fabrics: tuple[str, ...] = ("tcp",)
    core_config: CoreConfig = field(default_factory=CoreConfig)
    token: str | None = None
    cluster: str = ""
    runtime: Runtime = field(default_factory=real_runtime)
    rdma: RdmaSettings = DEFAULT_SETTINGS

    async def __aenter__(self) -> Cluster:
        self._stack = contextlib.AsyncExitStack()
        self.core = MasterCore(self.core_config, epoch=7)
        self.master = MasterServer(
            self.core, ["tcp://127.0.0.1:0"], self.runtime, token=self.token, cluster=self.cluster
        )
        await self.master.start()
        self._stack.push_async_callback(self.master.close)
        self.nodes: dict[str, Node] = {}
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()
        self.core.validate()
        self.runtime.offload.close()

    @property
    def address(self) -> str:
        return self.master.addresses[0]

    async def node(
        self, name: str, size_bytes: int = 16 * MIB, fabrics: tuple[str, ...] | None = None, cluster: str | None = None
    ) -> Node:
        """`cluster`: what the node is told, if that is something else."""
        told = self.cluster if cluster is None else cluster
        settings = ServerSettings(
            self.runtime,
            cluster=told,
            token=self.token,
            tcp_listen="127.0.0.1:0",
            shm_path=str(self.directory / f"{name}.sock"),
            rdma=self.rdma,
        )
        servers = build_servers(fabrics or self.fabrics, settings)
        node = Node(
            NodeSettings(name, (self.address,), size_bytes, token=self.token, cluster=told),
            servers,
            self.runtime,
        )
        await node.start()
        self._stack.push_async_callback(node.stop)
        self.nodes[name] = node
        return node

    async def client(self, name: str | None = None, **options: object) -> Client:
        options.setdefault("fabrics", self.fabrics)
        options.setdefault("rdma", self.rdma)
        client = await Client.connect(
            self.address, name=name, token=self.token, cluster=self.cluster, runtime=self.runtime, **options
        )
        self._stack.push_async_callback(client.close)
        return client


async def until(condition, timeout_s: float = 10.0) -> None:
    """Wait until `condition()` holds, looking whenever the loop turns; fail after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)
