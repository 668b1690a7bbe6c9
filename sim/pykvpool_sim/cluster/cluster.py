"""Builds the pool on simulated hosts: real `MasterServer`, `Node` and `Client`, given the world's clock, transports,
fabric and memory. Nothing in them knows that it is simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

from pykvpool.client import Client
from pykvpool.core.master import MasterCore
from pykvpool.errors import PoolError
from pykvpool.fabric.registry import ClientSettings
from pykvpool.master import MasterServer
from pykvpool.model.facts import Fact
from pykvpool.node import Node, NodeSettings
from pykvpool.runtime import Runtime
from pykvpool.transport.control import ControlSession
from pykvpool.transport.registry import TransportRegistry
from pykvpool_sim.checkers import Verdicts, Witness
from pykvpool_sim.checkers.contents import ContentChecker
from pykvpool_sim.checkers.guarded import GuardChecker
from pykvpool_sim.checkers.landings import LandingChecker
from pykvpool_sim.checkers.views import ViewChecker
from pykvpool_sim.cluster.buffers import PaintChecker
from pykvpool_sim.cluster.keys import value_of
from pykvpool_sim.cluster.shape import Shape
from pykvpool_sim.fabric import RAILS, DataNetwork, SimFabricClient, SimFabricServer, SimMemory
from pykvpool_sim.host import Host
from pykvpool_sim.runtime import sim_runtime
from pykvpool_sim.transport import SimTransport
from pykvpool_sim.world import World

MASTER = "master"
ADDRESS = f"sim://{MASTER}:7000"
#: A node that cannot start tries again after this.
_START_AGAIN_S = 0.5


class Cluster:
    """The hosts of one world, what they share, and who watches."""

    def __init__(self, world: World, shape: Shape, off: frozenset[str] = frozenset()) -> None:
        self.world = world
        self.shape = shape
        self.verdicts = Verdicts(lambda: world.loop.now_ns, off)
        self.network = DataNetwork(world)
        self.contents = ContentChecker(value_of, self.verdicts)
        self.landings = LandingChecker(lambda: self.witness.ledger if self.witness is not None else None, self.verdicts)
        self.guards = GuardChecker(lambda: self.witness, self.verdicts)
        self.views = ViewChecker(lambda: self.witness, self.contents.memory_behind, self.verdicts)
        self.network.watchers += [self.landings, self.guards, self.views]
        self.network.on_taken.append(PaintChecker(self.verdicts).taken)
        #: The present life of the master; None before the first.
        self.witness: Witness | None = None
        #: (world time, fact), of all lives of the master, for stories.
        self.facts: list[tuple[int, Fact]] = []
        #: Nodes that serve now, by host.
        self.nodes: dict[str, Node] = {}
        #: The mounts of each host's present life.
        self.memories: dict[str, list[SimMemory]] = {}
        #: (kind, host) of each strike that found something to befall.
        self.fired: list[tuple[str, str]] = []
        #: No new operations: the workload comes to its end.
        self.rest = asyncio.Event()
        #: Keys that somebody asked for in another size: their own writers may meet a conflict.
        self.doubtful: set[bytes] = set()
        #: Turns that were begun, by client host; over all its lives.
        self._turns: Counter[str] = Counter()

    def next_turn(self, host: str) -> int:
        """Numbers from 1."""
        self._turns[host] += 1
        return self._turns[host]

    def start(self, run_client: Callable[[Host], object]) -> None:
        """Make and boot all hosts; `run_client` is what clients run."""
        self._host(MASTER, self._run_master)
        for name, size_bytes in zip(self.shape.nodes, self.shape.segment_bytes, strict=True):
            self._host(name, self._node_program(size_bytes))
        for client in self.shape.clients:
            self._host(client.name, run_client)

    def _host(self, name: str, boot: Callable[[Host], object]) -> None:
        drift = self.world.draws(f"{name}/drift").between(-self.shape.drift_ppm, self.shape.drift_ppm)
        self.world.host(name, boot, drift_ppm=drift)  # type: ignore[arg-type]

    # -- master --------------------------------------------------------------------------------------------------

    async def _run_master(self, host: Host) -> None:
        runtime = sim_runtime(host)
        core = MasterCore(self.shape.config, epoch=runtime.new_incarnation())
        self.witness = Witness(core, runtime.clock, self.verdicts, self.contents, self._on_fact)
        server = MasterServer(self.witness, [ADDRESS], runtime, transports=_transports(host))
        await server.start()
        await asyncio.Event().wait()

    def _on_fact(self, fact: Fact) -> None:
        self.facts.append((self.world.loop.now_ns, fact))
        self.world.trace.note(repr(fact))

    # -- nodes ---------------------------------------------------------------------------------------------------

    def _node_program(self, size_bytes: int) -> Callable[[Host], object]:
        async def run(host: Host) -> None:
            self.memories[host.name] = []
            while True:
                node = self._node(host, size_bytes)
                try:
                    await node.start()
                except PoolError:
                    await asyncio.sleep(_START_AGAIN_S)
                    continue
                self.nodes[host.name] = node
                await node.wait_over()
                await node.stop()

        return run

    def _node(self, host: Host, size_bytes: int) -> Node:
        def lend(size_bytes: int, runtime: Runtime) -> SimMemory:
            memory = SimMemory(size_bytes, runtime, self._given_back)
            self.contents.lent(memory)
            self.memories[host.name].append(memory)
            # A dead process has no memory. (Its tasks are never freed, so it has to be said.)
            host.on_crash(memory.close)
            return memory

        servers = [SimFabricServer(host, self.network, rail) for rail in RAILS[: self.shape.rails]]
        settings = NodeSettings(host.name, (ADDRESS,), size_bytes)
        return Node(settings, servers, sim_runtime(host), transports=_transports(host), make_memory=lend)

    def _given_back(self, memory: SimMemory) -> None:
        """P5: memory that goes back to its machine is nobody's target any more."""
        if self.network.serves(memory):
            self.verdicts.add("P5", f"the memory of {memory.generation:#x} was given back while it could be reached")

    # -- clients -------------------------------------------------------------------------------------------------

    async def connect(
        self,
        host: Host,
        *,
        name: str | None = None,
        replicas: int = 1,
        timeout_s: float = 10.0,
        lanes: int = 1,
        blind: bool = False,
        maps: bool = False,
    ) -> Client:
        """A client of the pool on `host`; called in its life. Raises as `Client.connect`."""

        def make_fabric(scheme: str, settings: ClientSettings) -> SimFabricClient:
            return SimFabricClient(
                host, self.network, settings.peer, lanes=lanes, blind=blind, maps=maps, scheme=scheme
            )

        return await Client.connect(
            ADDRESS,
            name=name,
            replicas=replicas,
            min_replicas=1,
            timeout_s=timeout_s,
            fabrics=RAILS[: self.shape.rails],
            runtime=sim_runtime(host),
            transports=_transports(host),
            make_fabric=make_fabric,
        )


async def open_session(host: Host, name: str) -> ControlSession:
    """A bare session with the master, of a client that says what it likes. Raises as `ControlSession.connect`."""
    return await ControlSession.connect(
        [ADDRESS], name=name, role="client", runtime=sim_runtime(host), transports=_transports(host)
    )


def _transports(host: Host) -> TransportRegistry:
    registry = TransportRegistry()
    registry.register("sim", SimTransport(host))
    return registry


@contextlib.contextmanager
def awaited(verdicts: Verdicts) -> Iterator[None]:
    """Within the block, a coroutine that is dropped before anybody awaited it is a bug: something was to be done, and
    was not."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message="coroutine .* was never awaited", category=RuntimeWarning)
        show = warnings.showwarning

        def judge(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, RuntimeWarning) and "was never awaited" in str(message):
                verdicts.add("bug", str(message))
            else:
                show(message, category, *where, **more)

        warnings.showwarning = cast("Any", judge)
        yield


class BugLog(logging.Handler):
    """What the pool logs as an error is a bug of the pool: nobody's configuration or network is wrong here."""

    def __init__(self, verdicts: Verdicts) -> None:
        super().__init__(logging.ERROR)
        self._verdicts = verdicts

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self._verdicts.add("bug", f"{record.name} logs: {record.getMessage()}" + (f": {cause!r}" if cause else ""))
