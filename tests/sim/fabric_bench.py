"""The bench of the fabrics' conformance suite, inside a simulated world."""

import asyncio
import contextlib

from pykvpool.fabric.base import Peer
from pykvpool.fabric.inproc import InprocRegistry
from pykvpool.model.ids import NodeName, SegmentId
from pykvpool.model.objects import SegmentDescriptor
from pykvpool_sim.fabric import DataNetwork, FabricFaults, SimFabricClient, SimFabricServer, SimMemory
from pykvpool_sim.runtime import sim_runtime
from pykvpool_sim.world import World
from tests.fabric.bench import BACKENDS, SEGMENT_BYTES, Bench

BACKEND = next(backend for backend in BACKENDS if backend.scheme == "sim")
HOUR_NS = 3_600 * 1_000_000_000


class Held:
    """A peer's transfers stop after the first piece has landed: its host is cut off, and its NIC has all patience."""

    def __init__(self, network, peer, host):
        self._network, self._peer, self._host = network, peer, host
        self._reached = asyncio.Event()
        self._cut = None
        network.watchers.append(self)

    def landed(self, landing):
        if landing.peer == self._peer and not self._reached.is_set():
            self._reached.set()
            others = [name for name in self._network.world.hosts if name != self._host]
            self._cut = self._network.world.network.cut([self._host], others)

    async def reached(self):
        await self._reached.wait()

    def release(self):
        self._network.world.network.heal(self._cut)

    async def quiet(self):
        await asyncio.sleep(60)


class SimBench(Bench):
    """The bench of the suite, inside a world."""

    def client(self, peer=None, runtime=None):
        self._names += 1
        host = self.world.host(f"host-{self._names}")
        peer = peer or Peer(f"peer-{self._names}", self._names)
        client = SimFabricClient(host, self.network, peer, lanes=self.lanes, maps=self.backend.zero_copy)
        self.stack.push_async_callback(client.close)
        return client

    def _mount(self, size_bytes, number):
        memory = SimMemory(size_bytes, self.runtime)
        self.stack.callback(memory.close)
        return memory, describe(memory, self.server, number)

    async def held_client(self, peer):
        client = self.client(peer)
        return client, self.segment, Held(self.network, peer, f"host-{self._names}")


def describe(memory, server, number=1):
    endpoints = (server.export(memory),)
    return SegmentDescriptor(SegmentId(number), memory.generation, NodeName("owner"), memory.size_bytes, endpoints)


@contextlib.asynccontextmanager
async def open_bench(world, lanes=1, size_bytes=SEGMENT_BYTES, backend=BACKEND):
    owner = world.host("owner")
    runtime = sim_runtime(owner)
    network = DataNetwork(world)
    network.faults = FabricFaults(min_pieces=4, max_pieces=4, fence_ns=0, min_retry_ns=HOUR_NS, max_retry_ns=HOUR_NS)
    async with contextlib.AsyncExitStack() as stack:
        server = SimFabricServer(owner, network)
        await server.start()
        memory = SimMemory(size_bytes, runtime)
        stack.push_async_callback(server.close)
        bench = SimBench(backend, server, memory, describe(memory, server), runtime, InprocRegistry(), stack)
        bench.world, bench.network, bench.lanes = world, network, lanes
        yield bench


def run_in_a_world(backend, scenario):
    """Run ``scenario(bench)`` on virtual time."""

    async def simulated(world):
        async with open_bench(world, backend.lanes, backend=backend) as bench:
            await scenario(bench)

    World(7).run(simulated)
