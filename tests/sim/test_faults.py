"""Faults and plans: what the seed draws stays within the budget, and all is undone when it is calm."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykvpool_sim.disk import DiskFaults
from pykvpool_sim.draws import Draws
from pykvpool_sim.faults import FAULTS, Fault
from pykvpool_sim.life import State
from pykvpool_sim.network import NetworkFaults
from pykvpool_sim.plan import Budget, FaultPlan, Strike, carry_out, draw_plan
from pykvpool_sim.platter import MediaFaults
from pykvpool_sim.world import World

KINDS = {fault.name: fault for fault in FAULTS}
NAMES = ("a", "b", "c")


@given(
    seed=st.integers(0, 100_000),
    max_strikes=st.integers(1, 30),
    max_down=st.integers(0, 3),
    media=st.booleans(),
)
@settings(derandomize=True, max_examples=150, deadline=None)
def test_a_plan_stays_within_its_budget(seed, max_strikes, max_down, media):
    budget = Budget(max_strikes=max_strikes, max_down=max_down, media=media)
    plan = draw_plan(Draws(seed, "plan"), NAMES, budget)
    assert len(plan.strikes) <= max_strikes
    assert all(strike.at_ms >= 0 and strike.ends_ms <= plan.chaos_ms for strike in plan.strikes)
    assert all(strike.lasts_ms <= budget.max_lasts_ms for strike in plan.strikes)
    assert media or not any(KINDS[strike.fault].silent for strike in plan.strikes)
    downs = [strike for strike in plan.strikes if KINDS[strike.fault].takes_down]
    for moment in {strike.at_ms for strike in plan.strikes} | {strike.ends_ms for strike in plan.strikes}:
        down = [strike for strike in downs if strike.at_ms <= moment <= strike.ends_ms]
        assert len(down) <= max_down
        assert len({strike.host for strike in down}) == len(down)


def test_every_fault_is_drawn_sooner_or_later_and_swarms_leave_some_out():
    plans = [draw_plan(Draws(seed, "plan"), NAMES, Budget(media=True)) for seed in range(60)]
    drawn = [{strike.fault for strike in plan.strikes} for plan in plans]
    assert set.union(*drawn) == set(KINDS)
    assert max(len(kinds) for kinds in drawn) < len(KINDS)


def test_a_plan_reads_as_a_table():
    plan = FaultPlan((Strike(1_500, 200, "kill", "a"),), 60_000, 30_000)
    assert str(plan) == "    1500 ms  kill at a for 200 ms\n   60000 ms  calm for 30000 ms"


async def live(host):
    while True:
        await asyncio.sleep(1)


def looks(world):
    """All that a fault can change, but for time and what is on disks."""
    return (
        [(host.life.state, host.powered, host.is_suspended, host.disk.faults) for host in world.hosts.values()],
        world.network.faults,
        [world.network.passes(source, target) for source in NAMES for target in NAMES],
    )


def inhabited(world):
    for name in NAMES:
        world.host(name, boot=live)
    world.network.faults = NetworkFaults(max_delay_ns=300_000)
    world.hosts["a"].disk.faults = DiskFaults(media=MediaFaults(lost_write_ratio=0.5), capacity_bytes=9_000)
    return looks(world)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_every_fault_strikes_and_is_undone(fault):
    async def scenario(world):
        before = inhabited(world)
        host = world.hosts["a"]
        boot_ms, elapsed_ms = host.clock.now_ms(), 0
        drops = []
        host.disk.drop_caches, drop_caches = (lambda: (drops.append(1), drop_caches())), host.disk.drop_caches
        differed = False
        for _ in range(10):  # some strikes draw that nothing changes
            undo = fault.strike(world, host, world.draws("faults"))
            differed = differed or looks(world) != before or bool(drops)
            await asyncio.sleep(1)
            undo()
            elapsed_ms += 1_000
            differed = differed or host.clock.now_ms() != boot_ms + elapsed_ms
            assert looks(world) == before
        assert differed

    World(1).run(scenario)


@pytest.mark.parametrize("seed", range(15))
def test_after_a_plan_everything_is_as_before(seed):
    async def scenario(world):
        before = inhabited(world)
        plan = draw_plan(world.draws("plan"), NAMES, Budget(max_down=2, media=True))
        await carry_out(world, plan)
        assert looks(world) == before
        assert world.loop.now_ns == (plan.chaos_ms + plan.calm_ms) * 1_000_000

    World(seed).run(scenario)


def test_overlapping_faults_of_one_disk_undo_their_own_part_only():
    async def scenario(world):
        inhabited(world)
        host, draws = world.hosts["b"], world.draws("faults")
        undo_full = KINDS["full disk"].strike(world, host, draws)
        undo_failing = KINDS["failing disk"].strike(world, host, draws)
        undo_lying = KINDS["lying disk"].strike(world, host, draws)
        undo_full()
        undo_failing()
        assert host.disk.faults.capacity_bytes is None
        undo_lying()
        assert host.disk.faults == DiskFaults()

    World(1).run(scenario)


def test_a_cancelled_plan_undoes_what_still_lasts():
    async def scenario(world):
        before = inhabited(world)
        plan = FaultPlan((Strike(0, 50_000, "isolate", "a"), Strike(0, 50_000, "pause", "b")), 60_000, 0)
        carrying = asyncio.ensure_future(carry_out(world, plan))
        await asyncio.sleep(10)
        assert world.hosts["b"].life.state is State.PAUSED
        assert not world.network.passes("a", "c")
        carrying.cancel()
        await asyncio.wait([carrying])
        assert looks(world) == before

    World(1).run(scenario)


def test_a_new_fault_needs_an_entry_and_nothing_else():
    """The example of docs/simulation.md."""
    struck = []

    def wipe(world, host, draws):
        host.restart(wipe_disk=True)
        struck.append(host.name)
        return lambda: None

    async def scenario(world):
        inhabited(world)
        faults = (*FAULTS, Fault("wipe", wipe))
        plan = FaultPlan((Strike(1_000, 1, "wipe", "c"),), 2_000, 0)
        await carry_out(world, plan, faults)
        return world.trace.entries()

    entries = World(1, keep_trace=True).run(scenario)
    assert struck == ["c"]
    assert "strike: wipe at c" in entries
