"""Masters and nodes from a configuration: the one place where the parts of a server are put together.

`master` and `node` serve until somebody stops them; the bench runs a node within its own process. What listens where is
known only once it listens (port 0), so everything here is a context manager that gives the running thing.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from pykvpool.cli import format as say
from pykvpool.cli.fabric_settings import rdma_advertise, rdma_listen, rdma_settings
from pykvpool.cli.taken_names import check_master_answers, check_name_is_free
from pykvpool.cli.waiting import until_answered
from pykvpool.config import Config, MasterConfig, NodeConfig, PoolConfig, RdmaConfig
from pykvpool.core.config import CoreConfig
from pykvpool.core.master import MasterCore
from pykvpool.errors import ConfigError
from pykvpool.fabric.registry import ServerSettings, build_servers
from pykvpool.host.access import PoolAccess
from pykvpool.host.agent.server import AgentServer
from pykvpool.master import MasterServer
from pykvpool.master.decider import Decider
from pykvpool.node import Node, NodeSettings
from pykvpool.node.socket_files import engine_path, shm_path, sweep
from pykvpool.runtime import real_runtime

log = logging.getLogger("pykvpool.node")

#: Value of `engine_socket` that wants none.
NO_ENGINES = "off"


def core_config(config: MasterConfig) -> CoreConfig:
    """The core's numbers; they have the names of the configuration's keys."""
    return CoreConfig(**{field.name: getattr(config, field.name) for field in dataclasses.fields(CoreConfig)})


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server."""

    #: Control addresses of a master, data endpoints of a node.
    addresses: tuple[str, ...]
    #: URL of its HTTP face, "" where it has none.
    http: str

    @property
    def everywhere(self) -> str:
        """For people: all of it in one line."""
        return ", ".join([*self.addresses, *([self.http] if self.http else [])])


@dataclass(frozen=True, slots=True)
class ServingNode(Serving):
    node: Node
    #: Where engines of this host attach, "" where they cannot.
    engines: str

    @property
    def everywhere(self) -> str:
        rest = [self.http] if self.http else []
        if self.engines:
            rest.append(f"engines attach at {self.engines}")
        return "; ".join([say.endpoints(self.addresses), *rest])


@asynccontextmanager
async def running_master(config: Config) -> AsyncIterator[Serving]:
    """A master that listens as configured. Raises `ConfigError` (port taken, bad address)."""
    runtime, pool = real_runtime(), config.pool
    core = MasterCore(core_config(config.master), runtime.new_incarnation())
    async with AsyncExitStack() as stack:
        stack.callback(runtime.offload.close)
        face = None
        decider: Decider = core
        if config.master.http_listen:
            from pykvpool.cli.faces import MasterFace

            face = MasterFace()
            decider = face.timed(core)
        server = MasterServer(decider, config.master.listen, runtime, token=pool.token or None, cluster=pool.cluster)
        stack.push_async_callback(server.close)
        await server.start()
        http = ""
        if face is not None:
            http = await stack.enter_async_context(face.serve(server, config.master.http_listen, pool, runtime))
        yield Serving(server.addresses, http)


@asynccontextmanager
async def running_node(config: Config, *, wait: bool = False) -> AsyncIterator[ServingNode]:
    """A node that lends its memory as configured; leaving takes it back and tells the master at once.

    Args:
        wait: for a master that does not answer yet, without end.

    Raises `ConfigError` (memory, port, directory, a name that a connected node has), `Unavailable`, `Refused`.
    """
    node, pool = config.node, config.pool
    settings = NodeSettings(
        node.name or socket.gethostname(), pool.master, node.segment_size, pool.token or None, pool.cluster
    )
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(
            _running(settings, node, config.rdma, ask=not node.replace, wait=wait)
        )
        http = ""
        if node.http_listen:
            from pykvpool.cli.faces import node_face

            http = await stack.enter_async_context(node_face(running, node.http_listen))
        engines = ""
        if node.engine_socket != NO_ENGINES:
            engines = await stack.enter_async_context(_engines_of(running, config, settings))
        yield ServingNode(running.mount.endpoints if running.mount is not None else (), http, running, engines)


@asynccontextmanager
async def running_pool(config: Config) -> AsyncIterator[tuple[Serving, ServingNode]]:
    """A master and one node of it, both in this process; raises as they do. Engines that attach reach the node's memory
    without leaving the process."""
    async with running_master(config) as master:
        inside = dataclasses.replace(
            config,
            pool=dataclasses.replace(config.pool, master=master.addresses),
            node=dataclasses.replace(config.node, fabrics=("inproc", *config.node.fabrics)),
        )
        async with running_node(inside) as node:
            yield master, node


@asynccontextmanager
async def _engines_of(running: Node, config: Config, settings: NodeSettings) -> AsyncIterator[str]:
    """Take engines of this host in; yields the socket's path. Where nobody named one and there can be none, the node
    does without."""
    node = config.node
    access = PoolAccess(
        settings.master,
        f"{settings.name}-engines",
        cluster=running.session.cluster if running.session is not None else settings.cluster,
        token=settings.token,
        fabrics=tuple(dict.fromkeys((*config.client.fabrics, *node.fabrics))),
        rdma=rdma_settings(config.rdma),
    )
    runtime = real_runtime()
    server: AgentServer | None = None
    try:
        try:
            path = node.engine_socket or engine_path(settings.name, node.shm_dir)
            server = AgentServer(path, settings.name, access, runtime)
            sweep(path)
            await server.start()
        except ConfigError as error:
            if node.engine_socket:
                raise
            log.warning("engines of this host cannot attach: %s", error)
            server = None
        yield server.path if server is not None else ""
    finally:
        if server is not None:
            await server.close()
        runtime.offload.close()


@asynccontextmanager
async def embedded_node(name: str, masters: Sequence[str], segment_bytes: int) -> AsyncIterator[Node]:
    """A node of this process that others of it reach over inproc alone."""
    settings = NodeSettings(name, tuple(masters), segment_bytes)
    inproc = dataclasses.replace(NodeConfig(), fabrics=("inproc",))
    async with _running(settings, inproc, RdmaConfig()) as running:
        yield running


@asynccontextmanager
async def _running(
    settings: NodeSettings, config: NodeConfig, rdma: RdmaConfig, *, ask: bool = False, wait: bool = False
) -> AsyncIterator[Node]:
    """`ask`: whether the name is free; else it is taken from whoever has it. `wait`: see `running_node`."""
    runtime = real_runtime()
    offered = ServerSettings(
        runtime=runtime,
        cluster=settings.cluster,
        token=settings.token,
        tcp_listen=config.data_listen.removeprefix("tcp://"),
        tcp_advertise=config.advertise,
        shm_path=shm_path(settings.name, config.shm_dir) if "shm" in config.fabrics else "",
        rdma_listen=rdma_listen(config),
        rdma_advertise=rdma_advertise(config),
        rdma=rdma_settings(rdma),
    )
    node = Node(settings, build_servers(config.fabrics, offered), runtime)
    try:
        check = check_name_is_free if ask else check_master_answers
        if wait:
            await until_answered(settings.master, lambda: check(settings, runtime))
        elif ask:
            await check(settings, runtime)
        if offered.shm_path:
            sweep(offered.shm_path)
        await node.start()
        yield node
    finally:
        await node.stop()
        runtime.offload.close()


def describe_pool(pool: PoolConfig) -> str:
    """What a start line says about admission."""
    cluster = f"cluster {pool.cluster!r}" if pool.cluster else "any cluster"
    return f"{cluster}, {'token required' if pool.token else 'no token'}"
