"""What the cluster's own watchers see: paint that is sent, memory that goes back too early, words of strangers."""

import asyncio
import warnings
from types import SimpleNamespace

import pytest

from pykvpool.fabric.base import Peer
from pykvpool.model.commands import PutEnd, PutRevoke, Renew
from pykvpool.model.replies import Done
from pykvpool_sim.checkers import Verdicts
from pykvpool_sim.checkers.ledger import Holding, PutEntry
from pykvpool_sim.cluster import meddling
from pykvpool_sim.cluster.buffers import PaintChecker, PaintedBuffers
from pykvpool_sim.cluster.cluster import Cluster, awaited
from pykvpool_sim.cluster.program import ClientProgram
from pykvpool_sim.cluster.shape import draw_shape
from pykvpool_sim.cluster.turns import Turn
from pykvpool_sim.cluster.workload import VERBS
from pykvpool_sim.fabric import SimFabricServer, SimMemory, Taking
from pykvpool_sim.runtime import sim_runtime
from pykvpool_sim.world import World


def a_cluster(world):
    return Cluster(world, draw_shape(world.draws("shape"), [weights for _, weights in VERBS.values()], 1_000))


def found(verdicts):
    return [violation.promise for violation in verdicts.found]


@pytest.mark.parametrize(("data", "broken"), [(b"\xdb" * 40, ["P2"]), (b"a" * 20 + b"\xdb" * 20, ["P2"]), (b"ab", [])])
def test_p2_paint_of_a_finished_call_is_not_sent(data, broken):
    verdicts = Verdicts(lambda: 0)
    PaintChecker(verdicts).taken(Taking(Peer("c", 1), 7, data))
    assert found(verdicts) == broken


def test_a_coroutine_that_nobody_awaits_is_a_bug_and_other_warnings_are_as_they_were():
    verdicts = Verdicts(lambda: 0)

    async def forgotten():
        raise AssertionError("never begun")

    with pytest.warns(RuntimeWarning, match="something else"), awaited(verdicts):
        forgotten()
        warnings.warn("something else", RuntimeWarning, stacklevel=1)
    assert found(verdicts) == ["bug"] and "forgotten" in str(verdicts.found[0])


def test_p5_memory_goes_back_only_when_no_nic_reaches_it():
    world = World(0)
    cluster = a_cluster(world)

    async def scenario(world):
        host = world.host("lender")
        server = SimFabricServer(host, cluster.network)
        await server.start()
        memories = [SimMemory(4096, sim_runtime(host), cluster._given_back) for _ in range(3)]
        for memory in memories:
            server.export(memory)
        await server.withdraw(memories[0].generation)
        memories[0].close()
        assert found(cluster.verdicts) == []
        memories[1].close()
        assert found(cluster.verdicts) == ["P5"]
        host.crash(power=True)
        memories[2].close()  # a dead process serves nothing
        assert found(cluster.verdicts) == ["P5"]

    world.run(scenario)


class Obliging:
    """A session with a master that takes every word."""

    async def call(self, command, timeout_s):
        return Done()


@pytest.mark.parametrize("command", [PutEnd((4, 5), (0, 0), (1, 1)), PutRevoke((4, 5)), Renew((4, 5))])
def test_p1_a_stranger_that_is_believed_is_a_violation(command):
    world = World(0)
    cluster = a_cluster(world)

    async def scenario(world):
        host = world.host("client-0")
        turn = Turn(cluster, host, cluster.shape.clients[0], PaintedBuffers("client-0", cluster.verdicts), 1)
        await meddling._refused(turn, Obliging(), command, (4, 5))

    world.run(scenario)
    assert found(cluster.verdicts) == ["P1", "P1"]


def test_a_stranger_speaks_of_what_is_in_quarantine_first():
    holdings = [Holding.QUARANTINED, Holding.COMMITTED, Holding.QUARANTINED, *[Holding.COMMITTED] * 9, None]
    puts = {
        number: PutEntry(fact=None, holdings={} if holding is None else {(1, number, 64): holding})
        for number, holding in enumerate(holdings)
    }
    witness = SimpleNamespace(ledger=SimpleNamespace(puts=puts))
    assert meddling._puts(witness) == (2, 0, 11, 10)


def test_turns_come_at_times_of_their_own_whether_or_not_others_are_left_out(monkeypatch):
    """Leaving out half of the turns leaves the others when they were."""

    def times(left_in):
        world = World(5)
        cluster = a_cluster(world)
        seen = {}

        async def note(turn, client):
            seen[turn.name] = world.loop.now_ns

        monkeypatch.setattr("pykvpool_sim.cluster.program.VERBS", dict.fromkeys(VERBS, (note, 1)))

        async def scenario(world):
            host = world.host("client-0")
            program = ClientProgram(cluster, host, cluster.shape.clients[0], left_in)
            task = host.spawn(program._work(None))
            await asyncio.sleep(5)
            cluster.rest.set()
            await task

        world.run(scenario)
        return seen

    whole = times(None)
    half = frozenset(sorted(whole)[::2])
    assert len(whole) > 5 and times(half) == {name: time for name, time in whole.items() if name in half}
