"""The HTTP faces of the two servers: what `pykvpool master --http` and `pykvpool node --http` show.

Both ask the master for its state as any process with a session does, the master itself too: its core is nobody's but
its server's. This module is imported only where a face is wanted, and with it the HTTP stack.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pykvpool import __version__
from pykvpool.config import PoolConfig, parse_host_port
from pykvpool.core.master import MasterCore
from pykvpool.master import MasterServer
from pykvpool.metrics import Metrics
from pykvpool.node import Node
from pykvpool.observe.app import build_app
from pykvpool.observe.serve import serve_http
from pykvpool.observe.source import Health, SessionSource, Source
from pykvpool.observe.timed import TimedCore
from pykvpool.runtime import Runtime
from pykvpool.transport.control import ControlSession

#: Name of the session in which a master asks itself for its state; it is among the readers of that state.
FACE_NAME = "http face"


class NodeSource(SessionSource):
    """A node seen from outside: healthy while its memory is lent."""

    def __init__(self, node: Node) -> None:
        super().__init__("node", Metrics("node", __version__), lambda: node.session, node.name)
        self._node = node

    def health(self) -> Health:
        mount = self._node.mount
        if mount is None or mount.segment is None:
            return Health(("its memory is not lent: the mount was lost, a new one is on its way",))
        return super().health()


class MasterFace:
    """A master's metrics, from before it serves; `serve` shows them."""

    def __init__(self) -> None:
        self._metrics = Metrics("master", __version__)

    def timed(self, core: MasterCore) -> TimedCore:
        """The core, with its steps timed."""
        return TimedCore(core, self._metrics)

    @asynccontextmanager
    async def serve(self, server: MasterServer, listen: str, pool: PoolConfig, runtime: Runtime) -> AsyncIterator[str]:
        """Show a running master; gives the URL. Raises `ConfigError` (port taken, bad host)."""
        session = await ControlSession.connect(
            server.addresses, name=FACE_NAME, role="reader", runtime=runtime, token=pool.token or None
        )
        try:
            async with _served(SessionSource("master", self._metrics, lambda: session), listen) as url:
                yield url
        finally:
            await session.close()


@asynccontextmanager
async def node_face(node: Node, listen: str) -> AsyncIterator[str]:
    """Show a running node; gives the URL. Raises `ConfigError` (port taken, bad host)."""
    async with _served(NodeSource(node), listen) as url:
        yield url


@asynccontextmanager
async def _served(source: Source, listen: str) -> AsyncIterator[str]:
    place = parse_host_port(listen)
    async with await serve_http(build_app(source), place.host, place.port) as server:
        yield server.url
