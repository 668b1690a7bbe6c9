"""What the configuration says of RDMA, as the fabric takes it."""

from __future__ import annotations

from pykvpool.config import NodeConfig, RdmaConfig, parse_host_port
from pykvpool.fabric.rdma.settings import RdmaSettings


def rdma_settings(config: RdmaConfig) -> RdmaSettings:
    """Raises `ConfigError`."""
    gid_index = None if config.gid_index < 0 else config.gid_index
    return RdmaSettings(
        config.devices, config.queue_pairs, gid_index, "" if config.binding == "any" else config.binding
    )


def rdma_listen(config: NodeConfig) -> str:
    """``host:port`` for the lines of a node's peers: by default beside its TCP data port."""
    if config.rdma_listen:
        return config.rdma_listen.removeprefix("tcp://")
    host = parse_host_port(config.data_listen.removeprefix("tcp://")).host
    return f"[{host}]:0" if ":" in host else f"{host}:0"


def rdma_advertise(config: NodeConfig) -> str:
    """The host of `advertise`: a port in it is that of TCP, the lines have one of their own."""
    host, colon, port = config.advertise.rpartition(":")
    return host if colon and port.isdigit() and (host.endswith("]") or ":" not in host) else config.advertise
