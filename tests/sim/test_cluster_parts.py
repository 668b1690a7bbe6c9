"""The pool's own control plane, unchanged, on simulated hosts: the master's server and the sessions of clients."""

import asyncio

import pytest

from pykvpool.core.config import CoreConfig
from pykvpool.core.master import MasterCore
from pykvpool.errors import PoolError, SessionExpired, Unavailable
from pykvpool.master import MasterServer
from pykvpool.model.commands import ClusterState, Exists, Intern
from pykvpool.model.keys import Scope
from pykvpool.transport.control import ControlSession
from pykvpool.transport.registry import TransportRegistry
from pykvpool_sim.faults import FAULTS
from pykvpool_sim.plan import Budget, carry_out, draw_plan
from pykvpool_sim.runtime import sim_runtime
from pykvpool_sim.seeds import seeds
from pykvpool_sim.transport import SimTransport
from pykvpool_sim.world import World

MASTER = "sim://master:7000"


def transports(host):
    registry = TransportRegistry()
    registry.register("sim", SimTransport(host))
    return registry


async def run_master(host):
    runtime = sim_runtime(host)
    core = MasterCore(CoreConfig(), epoch=runtime.new_incarnation())
    server = MasterServer(core, [MASTER], runtime, transports=transports(host))
    await server.start()
    await asyncio.Event().wait()


async def connect(host):
    return await ControlSession.connect(
        [MASTER], name=host.name, role="client", runtime=sim_runtime(host), transports=transports(host)
    )


async def ask(session):
    scope = (await session.call(Intern((Scope(),)))).scopes[0]
    return await session.call(Exists(scope, (b"k" * 16,)))


def test_a_client_talks_to_a_master_on_virtual_time():
    async def scenario(world):
        world.host("master", boot=run_master)
        client = world.host("client")

        async def code():
            session = await connect(client)
            await ask(session)
            await asyncio.sleep(3_600)  # an hour of heartbeats
            state = await session.call(ClusterState())
            await session.close()
            return state

        state = await client.run(code())
        assert state.counters["sessions_opened_total"] == 1
        assert state.counters["sessions_expired_total"] == 0

    World(1).run(scenario)


def test_a_suspended_client_finds_its_session_over():
    async def scenario(world):
        world.host("master", boot=run_master)
        client = world.host("client")
        session = await client.run(connect(client))
        await asyncio.sleep(1)
        client.suspend()
        await asyncio.sleep(120)
        client.wake()
        with pytest.raises(SessionExpired):
            await client.run(ask(session))

    World(1).run(scenario)


def test_no_master_is_said_within_the_deadline():
    async def scenario(world):
        client, master = world.host("client"), world.host("master")
        with pytest.raises(Unavailable, match="refused"):
            await client.run(connect(client))
        master.crash(power=True)
        begun_ns = world.loop.now_ns
        with pytest.raises(Unavailable, match="timed out"):
            await client.run(connect(client))
        assert world.loop.now_ns - begun_ns <= 5_100_000_000

    World(1).run(scenario)


@pytest.mark.parametrize("seed", seeds(8))
def test_whatever_strikes_clients_work_again_when_it_is_calm(seed):
    """Calls end in a reply or an error of the pool, none hangs, and after the faults every client gets through."""

    async def scenario(world):
        world.host("master", boot=run_master)
        answered = dict.fromkeys(("c1", "c2"), 0.0)

        async def run_client(host):
            while True:
                try:
                    async with asyncio.timeout(30):
                        session = await connect(host)
                    try:
                        while True:
                            async with asyncio.timeout(60):
                                await ask(session)
                            answered[host.name] = world.loop.now_ns / 1e9
                            await asyncio.sleep(0.5)
                    finally:
                        await session.close()
                except PoolError:
                    await asyncio.sleep(0.5)

        for name in answered:
            world.host(name, boot=run_client)
        plan = draw_plan(world.draws("plan"), list(world.hosts), Budget(), FAULTS)
        await carry_out(world, plan)
        calm_s = plan.chaos_ms / 1_000
        assert all(when > calm_s + 30 for when in answered.values()), f"{answered}\n{plan}"

    World(seed, limit_s=600).run(scenario)
