"""What one seed draws before anything runs: how many of whom, how large, how patient, how busy.

Times are short and memories small, so that in a minute of virtual time sessions expire, leases lapse, puts run out of
time, and the pool is full most of the time.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from pykvpool.core.config import CoreConfig
from pykvpool_sim.cluster.keys import KeySpace
from pykvpool_sim.draws import Draws

_KIB = 1024


@dataclass(frozen=True, slots=True)
class ClientShape:
    """One client process."""

    name: str
    #: Its session has the same name in every life, so a restarted one supersedes what it was.
    named: bool
    #: Its CPU does not see what it reads: the lease alone vouches for the bytes.
    blind: bool
    #: It runs on the nodes' machine: it can look at their memory where it lies.
    maps: bool
    #: Queue pairs to each mount.
    lanes: int
    #: Operations at once.
    workers: int
    #: Pause between two operations of a worker: up to this.
    think_ms: int
    replicas: int
    #: It wants a copy on every node, and no fewer: room has to be made on all of them or on none.
    everywhere: bool
    #: A part of its operations is cancelled half way.
    cancel_ratio: float
    min_timeout_ms: int
    max_timeout_ms: int
    #: How often it does what; by the names of `workload.VERBS`.
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """One cluster."""

    nodes: tuple[str, ...]
    #: Of each node's segment, in bytes.
    segment_bytes: tuple[int, ...]
    clients: tuple[ClientShape, ...]
    keys: KeySpace
    config: CoreConfig
    #: Memory may decay: then no client is blind, because only checksums can tell.
    decay: bool
    #: Hosts may be worse than slow clocks: parts per million.
    drift_ppm: int
    chaos_ms: int
    #: Data networks between every two hosts.
    rails: int

    def reduced_to(self, hosts: Container[str]) -> Shape:
        """The same cluster with these nodes and clients alone."""
        nodes = [(name, size) for name, size in zip(self.nodes, self.segment_bytes, strict=True) if name in hosts]
        return replace(
            self,
            nodes=tuple(name for name, _ in nodes),
            segment_bytes=tuple(size for _, size in nodes),
            clients=tuple(client for client in self.clients if client.name in hosts),
        )

    def copied_everywhere(self) -> Shape:
        """The same cluster with clients that all want a copy on every node."""
        return replace(self, clients=tuple(replace(client, everywhere=True) for client in self.clients))


def draw_shape(draws: Draws, weights: Sequence[Sequence[int]], chaos_ms: int) -> Shape:
    """A cluster. `weights`: for each kind of operation, how often a client may do it."""
    decay = draws.chance(0.25)
    nodes = tuple(f"node-{number}" for number in range(draws.between(1, 3)))
    segment_bytes = tuple(draws.choice((64, 96, 128, 256)) * _KIB for _ in nodes)
    keys = KeySpace(draws.between(3, 8), draws.between(4, 12))
    clients = tuple(_draw_client(draws, number, weights, decay, len(nodes)) for number in range(draws.between(2, 4)))
    config = CoreConfig(
        session_ttl_ms=draws.choice((3_000, 5_000)),
        reconnect_grace_ms=draws.choice((800, 2_000)),
        lease_ms=draws.choice((500, 2_000)),
        max_lease_ms=5_000,
        max_lease_lifetime_ms=10_000,
        max_leased_ratio_per_session=draws.choice((0.5, 1.0)),
        put_ttl_ms=draws.choice((2_000, 6_000)),
        max_wait_ms=draws.choice((3_000, 20_000)),
        slice_objects=draws.choice((40, 2_000)),
        policy=draws.choice(("lru", "fifo")),
    )
    return Shape(
        nodes,
        segment_bytes,
        clients,
        keys,
        config,
        decay,
        draws.choice((0, 100, 10_000)),
        chaos_ms,
        draws.between(1, 2),
    )


def _draw_client(draws: Draws, number: int, weights: Sequence[Sequence[int]], decay: bool, nodes: int) -> ClientShape:
    min_timeout_ms = draws.choice((50, 500, 2_000))
    named, blind, lanes = draws.chance(0.5), not decay and draws.chance(0.5), draws.between(1, 2)
    return ClientShape(
        name=f"client-{number}",
        named=named,
        blind=blind,
        # Decayed bytes can be seen by their checksum alone, and views have none.
        maps=not decay and not blind and lanes == 1,
        lanes=lanes,
        workers=draws.between(1, 3),
        think_ms=draws.choice((100, 400, 1_000)),
        replicas=draws.between(1, min(2, nodes)),
        everywhere=draws.chance(0.2),
        cancel_ratio=draws.choice((0.0, 0.05, 0.3)),
        min_timeout_ms=min_timeout_ms,
        max_timeout_ms=min_timeout_ms * draws.choice((1, 4)),
        weights=tuple(draws.choice(choices) for choices in weights),
    )
