"""Chooses where a process of the engine does its pool I/O, and under which name the pool knows it.

Best is the host's node: it is another process, so that packing thousands of keys takes no time from the engine's
interpreter (promise P9), and one client serves all ranks of the host. Where no node runs, the process embeds a client
in a thread of its own: then nothing else has to be started. The log says which it is.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from typing import Any

from pykvpool.cli.fabric_settings import rdma_settings
from pykvpool.errors import NotSupported
from pykvpool.host.access import PoolAccess
from pykvpool.host.embedded import EmbeddedPort
from pykvpool.host.local_pool import LocalPoolPort
from pykvpool.host.place import any_port, node_port
from pykvpool.host.port import PoolPort
from pykvpool_connector.vllm.settings import Settings

log = logging.getLogger(__name__)


def scheduler_port(settings: Settings, vllm_config: Any) -> PoolPort:
    """The scheduler's own way to the pool, apart from the workers' transfers."""
    return _open(settings, vllm_config, "scheduler", "the scheduler's")


def worker_port(settings: Settings, vllm_config: Any, device: str = "cpu") -> PoolPort:
    """One rank's way to the pool. `device`: the kind of memory that its cache is in; GPU memory can be reached by this
    process alone, so its I/O is done here. Raises `NotSupported` where the settings want it elsewhere."""
    parallel = vllm_config.parallel_config
    pipeline, tensor = divmod(parallel.rank, parallel.tensor_parallel_size)
    role = f"pp{pipeline}-tp{tensor}"
    if device != "cpu" and settings.options.embedded_size:
        raise NotSupported(
            "embedded_size is for engines whose cache is in host memory: start a pool beside this one with "
            "'pykvpool pool', and name it with \"master\""
        )
    if device != "cpu" and (settings.options.placement == "node" or settings.options.node_socket):
        raise NotSupported("a node cannot reach GPU memory of another process: leave \"placement\" to 'auto'")
    return _open(settings, vllm_config, role, f"rank {parallel.rank}'s", device)


def session_name(vllm_config: Any, role: str) -> str:
    """A name that no other process, rank or child connector has, at any time: of two sessions with one name the pool
    ends the older. Readable parts first, for whoever looks at the pool's sessions."""
    engine = str(vllm_config.kv_transfer_config.engine_id)
    data_parallel = getattr(vllm_config.parallel_config, "data_parallel_index", 0)
    short = hashlib.sha256(engine.encode()).hexdigest()[:8]
    return f"vllm-{short}-dp{data_parallel}-{role}-{os.getpid()}-{secrets.token_hex(4)}"


def _open(settings: Settings, vllm_config: Any, role: str, whose: str, device: str = "cpu") -> PoolPort:
    name = session_name(vllm_config, role)
    if device != "cpu":
        port: PoolPort = EmbeddedPort(access_of(settings, name))
    else:
        port = _port(settings, name, str(vllm_config.kv_transfer_config.engine_id))
    log.info("%s pool I/O is done by %s", whose, port.placement)
    return port


def _port(settings: Settings, name: str, engine: str) -> PoolPort:
    if settings.options.embedded_size:
        return LocalPoolPort(name, engine, settings.options.embedded_size)
    access = access_of(settings, name)
    if settings.options.placement == "embedded":
        return EmbeddedPort(access)
    if settings.options.placement == "node" or settings.options.node_socket:
        return node_port(access, settings.options.node_socket)
    return any_port(access)


def access_of(settings: Settings, name: str) -> PoolAccess:
    """How the settings say that the pool is reached."""
    pool, client = settings.config.pool, settings.config.client
    return PoolAccess(
        pool.master,
        name,
        cluster=pool.cluster,
        token=pool.token or None,
        fabrics=client.fabrics,
        rdma=rdma_settings(settings.config.rdma),
        replicas=client.replicas,
    )
