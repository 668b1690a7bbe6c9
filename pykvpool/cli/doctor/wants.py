"""What the configuration asks of this host: the only thing that turns a fact about it into something bad."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pykvpool.config import Config

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Port:
    """A place to listen."""

    host: str
    port: int
    #: The key that names it: ``node.data_listen``.
    key: str
    #: Somebody wrote it down; a default is nobody's wish.
    asked: bool

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Wants:
    """By default what a configuration without a line in it asks for."""

    fabrics: frozenset[str] = frozenset(("shm", "tcp"))
    #: Blocks are in GPU memory.
    gpu: bool = False
    #: Memory that a node lends here; 0: none is to run here for all we know.
    segment_bytes: int = 0
    #: Where the node's socket for shm is to be, "" by default.
    shm_dir: str = ""
    ports: tuple[Port, ...] = ()
    #: Addresses of masters that somebody wrote down.
    masters: tuple[str, ...] = ()
    #: RDMA devices by name, ``name`` or ``name:port``; empty: whatever there is.
    rdma_devices: tuple[str, ...] = ()

    @property
    def rdma(self) -> bool:
        return "rdma" in self.fabrics


def wants_of(config: Config, fabrics: Iterable[str], gpu: bool) -> Wants:
    """What a configuration asks for, and flags beside it."""
    asked = {*config.node.fabrics, *config.client.fabrics, *fabrics}
    return Wants(
        fabrics=frozenset(asked - {"inproc"}),
        gpu=gpu,
        segment_bytes=config.node.segment_size if config.sources["node.segment_size"] != DEFAULT else 0,
        shm_dir=str(Path(config.node.shm_dir).absolute()) if config.node.shm_dir else "",
        ports=tuple(_ports(config)),
        masters=tuple(config.pool.master) if config.sources["pool.master"] != DEFAULT else (),
        rdma_devices=config.rdma.devices,
    )


def _ports(config: Config) -> Iterable[Port]:
    for key, addresses in (
        ("master.listen", config.master.listen),
        ("master.http_listen", (config.master.http_listen,)),
        ("node.data_listen", (config.node.data_listen,)),
        ("node.rdma_listen", (config.node.rdma_listen,)),
        ("node.http_listen", (config.node.http_listen,)),
    ):
        for address in addresses:
            place = _place(address)
            if place is not None and place[1]:
                yield Port(*place, key, config.sources[key] != DEFAULT)


def _place(address: str) -> tuple[str, int] | None:
    """Host and port of ``tcp://host:port`` or ``host:port``; None for other addresses (unix sockets)."""
    scheme, separator, rest = address.rpartition("://")
    if separator and scheme not in ("tcp", "http"):
        return None
    host, colon, port = rest.rpartition(":")
    if not colon or not port.isdecimal():
        return None
    return host.strip("[]"), int(port)
