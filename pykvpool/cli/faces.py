"""The HTTP faces of the two servers: what `pykvpool master --http` and `pykvpool node --http` show.

Both ask the master for its state like any reader, also the master's own: its core is nobody's but its server's. Nothing
of the HTTP stack is imported unless a face is wanted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pykvpool.client import Client
from pykvpool.config import Config, parse_host_port
from pykvpool.errors import Unavailable
from pykvpool.master import MasterServer
from pykvpool.metrics import Metrics
from pykvpool.model.commands import ClusterState
from pykvpool.model.replies import State
from pykvpool.node import Node
from pykvpool.observe.source import Health

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from pykvpool.observe.source import Source

#: A face that waits longer for the state answers that it cannot be had (s).
STATE_TIMEOUT_S = 3.0


class MasterFace:
    """A master seen from outside. While its loop answers at all, it is healthy."""

    role = "master"

    def __init__(self, reader: Client) -> None:
        self._reader = reader
        self.registry: CollectorRegistry = Metrics(self.role).registry

    def health(self) -> Health:
        return Health()

    async def state(self) -> State:
        return await self._reader.state(timeout_s=STATE_TIMEOUT_S)


class NodeFace:
    """A node seen from outside: healthy while its memory is lent."""

    role = "node"

    def __init__(self, node: Node) -> None:
        self._node = node
        self.registry: CollectorRegistry = Metrics(self.role).registry

    def health(self) -> Health:
        if self._node.mount is None or self._node.mount.segment is None:
            return Health(("its memory is not mounted at the master",))
        return Health()

    async def state(self) -> State:
        session = self._node.session
        if session is None:
            raise Unavailable("this node has no session with the master")
        reply = await session.call(ClusterState(), STATE_TIMEOUT_S)
        if not isinstance(reply, State):
            raise Unavailable(f"the master answered with {type(reply).__name__}")
        return reply


@asynccontextmanager
async def master_face(server: MasterServer, config: Config) -> AsyncIterator[str]:
    """Serve a master's face where the configuration wants one; gives its URL, "" for none. Raises `ConfigError`."""
    if not config.master.http_listen:
        yield ""
        return
    reader = await Client.connect(
        server.addresses, name="http face", role="reader", token=config.pool.token or None, fabrics=()
    )
    async with reader, _served(MasterFace(reader), config.master.http_listen) as url:
        yield url


@asynccontextmanager
async def node_face(node: Node, config: Config) -> AsyncIterator[str]:
    """As `master_face`, for a node."""
    if not config.node.http_listen:
        yield ""
        return
    async with _served(NodeFace(node), config.node.http_listen) as url:
        yield url


@asynccontextmanager
async def _served(source: Source, listen: str) -> AsyncIterator[str]:
    from pykvpool.observe.app import build_app
    from pykvpool.observe.serve import serve_http

    place = parse_host_port(listen)
    async with await serve_http(build_app(source), place.host, place.port) as server:
        yield server.url
