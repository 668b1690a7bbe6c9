"""Fabrics by scheme: how a node gets its servers and a client its clients, from one set of settings.

A further fabric (an extra, a simulator) joins with `register`; asking for one that is not there says what is missing.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pykvpool.errors import ConfigError, NotSupported
from pykvpool.fabric.base import Exported, FabricClient, FabricServer, Peer
from pykvpool.fabric.inproc import PROCESS_REGISTRY, InprocClient, InprocRegistry, InprocServer
from pykvpool.fabric.rdma.client import RdmaClient
from pykvpool.fabric.rdma.server import RdmaServer
from pykvpool.fabric.rdma.settings import DEFAULT_SETTINGS, RdmaSettings
from pykvpool.fabric.shm_client import ShmClient
from pykvpool.fabric.shm_server import ShmServer
from pykvpool.fabric.tcp_client import TcpClient
from pykvpool.fabric.tcp_server import TcpServer
from pykvpool.memory.buffers import BufferRegistry
from pykvpool.memory.cuda import GpuMemory
from pykvpool.runtime import Runtime

log = logging.getLogger("pykvpool.fabric")

#: What a client tries and a node offers unless told otherwise.
DEFAULT_FABRICS = ("inproc", "shm", "tcp")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What fabric clients of one process need to know. `cluster` empty: any; `token` None: none."""

    peer: Peer
    runtime: Runtime
    cluster: str = ""
    token: str | None = field(default=None, repr=False)
    inproc: InprocRegistry = PROCESS_REGISTRY
    rdma: RdmaSettings = DEFAULT_SETTINGS
    #: What the user registered: memory that a card may keep registered too. None: nothing.
    buffers: BufferRegistry | None = None
    #: GPU memory, of which the same is true.
    gpu: GpuMemory | None = None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What fabric servers of one process need to know."""

    runtime: Runtime
    cluster: str = ""
    token: str | None = field(default=None, repr=False)
    #: ``host:port``; port 0 takes any free one.
    tcp_listen: str = "127.0.0.1:0"
    #: ``host`` or ``host:port`` that peers should use; empty: what `tcp_listen` says.
    tcp_advertise: str = ""
    #: Absolute path of the UNIX socket; shm needs it.
    shm_path: str = ""
    inproc: InprocRegistry = PROCESS_REGISTRY
    #: ``host:port`` of the lines on which queue pairs are agreed on; and as for tcp.
    rdma_listen: str = "127.0.0.1:0"
    rdma_advertise: str = ""
    rdma: RdmaSettings = DEFAULT_SETTINGS


@dataclass(frozen=True, slots=True)
class Fabric:
    """How to build both ends of one fabric."""

    scheme: str
    client: Callable[[ClientSettings], FabricClient]
    server: Callable[[ServerSettings], FabricServer]


T = TypeVar("T")

_fabrics: dict[str, Fabric] = {}
#: What was said to be missing.
_said: set[str] = set()


def register(fabric: Fabric) -> None:
    """Add a fabric, or replace the one of the same scheme."""
    _fabrics[fabric.scheme] = fabric


def build_client(scheme: str, settings: ClientSettings) -> FabricClient:
    """Raises `NotSupported` (an extra is missing) or `ConfigError` (no such fabric)."""
    return _find(scheme).client(settings)


def build_server(scheme: str, settings: ServerSettings) -> FabricServer:
    """Raises as `build_client`."""
    return _find(scheme).server(settings)


def build_clients(schemes: Sequence[str], settings: ClientSettings) -> list[FabricClient]:
    return build_available(schemes, lambda scheme: build_client(scheme, settings))


def build_servers(schemes: Sequence[str], settings: ServerSettings) -> list[FabricServer]:
    return build_available(schemes, lambda scheme: build_server(scheme, settings))


def build_available(schemes: Sequence[str], build: Callable[[str], T]) -> list[T]:
    """One of each. What this host does not offer is left out with a warning, once for each reason in a process, as
    long as another way to other processes remains; else its `NotSupported` is raised."""
    built: list[T] = []
    ways_out = 0
    missing: list[tuple[str, NotSupported]] = []
    for scheme in schemes:
        try:
            built.append(build(scheme))
            ways_out += scheme != "inproc"
        except NotSupported as error:
            missing.append((scheme, error))
    for scheme, lacking in missing:
        if not ways_out:
            raise lacking
        if lacking.message not in _said:
            _said.add(lacking.message)
            log.warning("going on without %s: %s", scheme, lacking.message)
    return built


def export_over(servers: Sequence[FabricServer], memory: Exported) -> tuple[str, ...]:
    """Export over every server that can offer this memory; the endpoints for its descriptor."""
    endpoints = []
    for server in servers:
        try:
            endpoints.append(server.export(memory))
        except NotSupported:
            continue  # shm without a memfd: the other fabrics remain
    return tuple(endpoints)


def _find(scheme: str) -> Fabric:
    fabric = _fabrics.get(scheme)
    if fabric is not None:
        return fabric
    near = difflib.get_close_matches(scheme, _fabrics, n=1)
    hint = f": did you mean {near[0]!r}?" if near else f": known are {', '.join(_fabrics)}"
    raise ConfigError(f"no fabric is called {scheme!r}{hint}")


def _shm_server(settings: ServerSettings) -> FabricServer:
    if not settings.shm_path:
        raise ConfigError("the shm fabric needs a path for its socket (--shm-dir)")
    return ShmServer(settings.runtime, settings.shm_path, cluster=settings.cluster, token=settings.token)


register(
    Fabric(
        "inproc",
        lambda settings: InprocClient(settings.peer, settings.runtime, settings.inproc),
        lambda settings: InprocServer(settings.inproc),
    )
)
register(
    Fabric(
        "shm",
        lambda settings: ShmClient(settings.peer, settings.runtime, cluster=settings.cluster, token=settings.token),
        _shm_server,
    )
)
register(
    Fabric(
        "tcp",
        lambda settings: TcpClient(settings.peer, settings.runtime, cluster=settings.cluster, token=settings.token),
        lambda settings: TcpServer(
            settings.runtime,
            settings.tcp_listen,
            advertise=settings.tcp_advertise,
            cluster=settings.cluster,
            token=settings.token,
        ),
    )
)
register(
    Fabric(
        "rdma",
        lambda settings: RdmaClient(
            settings.peer,
            settings.runtime,
            cluster=settings.cluster,
            token=settings.token,
            settings=settings.rdma,
            buffers=settings.buffers,
            gpu=settings.gpu,
        ),
        lambda settings: RdmaServer(
            settings.runtime,
            settings.rdma_listen,
            advertise=settings.rdma_advertise,
            cluster=settings.cluster,
            token=settings.token,
            settings=settings.rdma,
        ),
    )
)
