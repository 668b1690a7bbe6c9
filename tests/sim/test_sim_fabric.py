"""``sim://`` keeps the promises of the contract of all fabrics, and breaks what real ones break."""

import asyncio
import contextlib
import inspect
import itertools
from dataclasses import replace

import pytest

from pykvpool.errors import DeadlineExceeded, PoolError, Refused, SegmentGone
from pykvpool.fabric.base import Peer
from pykvpool.fabric.inproc import InprocRegistry
from pykvpool.model.ids import NodeName, SegmentId
from pykvpool.model.objects import SegmentDescriptor
from pykvpool_sim.fabric import DataNetwork, FabricFaults, SimFabricClient, SimFabricServer, SimMemory
from pykvpool_sim.runtime import sim_runtime
from pykvpool_sim.seeds import seeds
from pykvpool_sim.world import World
from tests.fabric.bench import BIG_BYTES, SEGMENT_BYTES, TIMEOUT_S, Backend, Bench
from tests.fabric.conformance import FabricConformance

BACKEND = Backend("sim", "sim", owner_is_asked=False, on_the_wire=True)
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
        client = SimFabricClient(host, self.network, peer, lanes=self.lanes)
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
async def open_bench(world, lanes=1, size_bytes=SEGMENT_BYTES):
    owner = world.host("owner")
    runtime = sim_runtime(owner)
    network = DataNetwork(world)
    network.faults = FabricFaults(min_pieces=4, max_pieces=4, fence_ns=0, min_retry_ns=HOUR_NS, max_retry_ns=HOUR_NS)
    async with contextlib.AsyncExitStack() as stack:
        server = SimFabricServer(owner, network)
        await server.start()
        memory = SimMemory(size_bytes, runtime)
        stack.push_async_callback(server.close)
        bench = SimBench(BACKEND, server, memory, describe(memory, server), runtime, InprocRegistry(), stack)
        bench.world, bench.network, bench.lanes = world, network, lanes
        yield bench


#: Holds whichever operation lands first, which is the first of the batch on one lane only.
ONE_LANE_ONLY = "test_a_write_that_broke_off_half_way_is_not_settled_and_one_that_had_not_begun_is"


def scenarios():
    """Every test of the suite, with every combination of its parameters."""
    for name, test in inspect.getmembers(FabricConformance, inspect.iscoroutinefunction):
        if name.startswith("test_"):
            marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
            for values in itertools.product(*(mark.args[1] for mark in marks)):
                arguments = {}
                for mark, value in zip(marks, values, strict=True):
                    single = isinstance(mark.args[0], str)
                    arguments.update({mark.args[0]: value} if single else zip(mark.args[0], value, strict=True))
                label = "-".join(map(str, arguments.values()))
                yield pytest.param(test, arguments, id=f"{name}[{label}]" if label else name)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize(("test", "arguments"), list(scenarios()))
def test_every_promise_of_the_conformance_suite(test, arguments, lanes):
    if test.__name__ == ONE_LANE_ONLY:
        lanes = 1

    async def scenario(world):
        async with open_bench(world, lanes) as bench:
            given = {"bench": bench, "backend": BACKEND, **arguments}
            await test(FabricConformance(), **{name: given[name] for name in given if name in accepted})

    accepted = inspect.signature(test).parameters
    World(7).run(scenario)


def test_the_suite_is_really_there():
    assert len(list(scenarios())) >= 30
    assert BIG_BYTES < SEGMENT_BYTES
