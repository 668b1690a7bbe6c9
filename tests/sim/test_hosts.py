"""Hosts: what it means to be stopped, to sleep, to die and to come back."""

import asyncio
import contextlib
import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykvpool.runtime import Clock, Offload
from pykvpool_sim.choosers import Fifo
from pykvpool_sim.clock import HostClock
from pykvpool_sim.errors import Deadlock, EscapesSimulation, HostCrashed, SimulationError, Unhandled
from pykvpool_sim.life import CURRENT_LIFE
from pykvpool_sim.runtime import sim_runtime
from pykvpool_sim.seeds import SEED_VARIABLE, replay_note, seeds
from pykvpool_sim.world import World


def simulate(scenario, seed=1, **options):
    world = World(seed, chooser=lambda draws: Fifo(), **options)
    return world.run(scenario)


async def beats(beaten, every_s=1.0):
    while True:
        beaten.append(asyncio.get_running_loop().time())
        await asyncio.sleep(every_s)


def test_all_that_a_hosts_code_starts_belongs_to_the_host():
    async def scenario(world):
        host = world.host("a")
        seen = []

        async def nested():
            seen.append(CURRENT_LIFE.get().name)

        async def code():
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: seen.append(CURRENT_LIFE.get().name))
            loop.call_later(1, lambda: seen.append(CURRENT_LIFE.get().name))
            future = loop.create_future()
            future.add_done_callback(lambda done: seen.append(CURRENT_LIFE.get().name))
            future.set_result(None)
            async with asyncio.TaskGroup() as group:
                group.create_task(nested())
            await asyncio.sleep(2)

        await host.run(code())
        assert seen == ["a#1"] * 4
        assert CURRENT_LIFE.get() is None

    simulate(scenario)


def test_a_result_and_an_error_come_back_from_the_host():
    async def scenario(world):
        host = world.host("a")
        assert await host.run(asyncio.sleep(1, "done")) == "done"

        async def fails():
            raise KeyError("x")

        with pytest.raises(KeyError):
            await host.run(fails())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await host.run(asyncio.sleep(5))

    simulate(scenario)


def test_an_error_after_the_wait_was_given_up_is_not_lost():
    async def scenario(world):
        async def fails_while_cancelled():
            try:
                await asyncio.Event().wait()
            finally:
                raise KeyError("in cleanup")

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await world.host("a").run(fails_while_cancelled())
        await asyncio.sleep(1)

    with pytest.raises(Unhandled, match="in cleanup"):
        simulate(scenario)


def test_a_paused_host_is_still_and_its_timers_are_all_due_when_it_goes_on():
    async def scenario(world):
        beaten = []
        host = world.host("a", boot=lambda host: beats(beaten))
        await asyncio.sleep(2.5)
        host.pause()
        await asyncio.sleep(10)
        assert beaten == [0, 1, 2]
        host.resume()
        await asyncio.sleep(1.7)
        assert beaten == [0, 1, 2, 12.5, 13.5]

    simulate(scenario)


def test_a_suspended_hosts_timers_stand_still_while_its_boot_time_goes_on():
    async def scenario(world):
        beaten = []
        host = world.host("a", boot=lambda host: beats(beaten))
        await asyncio.sleep(2.5)
        boot_ms = host.clock.now_ms()
        host.suspend()
        host.resume()  # resume does not open a lid
        await asyncio.sleep(10)
        host.wake()
        assert host.clock.now_ms() == boot_ms + 10_000
        await asyncio.sleep(1)
        assert beaten == [0, 1, 2, 3]  # half a second after waking, by its own monotonic clock
        await asyncio.sleep(0.6)
        assert beaten == [0, 1, 2, 3, 4]

    simulate(scenario)


def test_a_crash_runs_no_cleanup_neither_then_nor_ever():
    ran = []

    @contextlib.contextmanager
    def managed():
        try:
            yield
        finally:
            ran.append("context manager")

    async def generator():
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            ran.append("asynchronous generator")

    async def code():
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.add_done_callback(lambda done: ran.append("done callback"))
        asyncio.get_running_loop().call_later(5, ran.append, "timer")
        try:
            with managed():
                async for _ in generator():
                    await asyncio.Event().wait()
        except asyncio.CancelledError:
            ran.append("cancelled")
        finally:
            ran.append("finally")

    async def scenario(world):
        host = world.host("a")
        running = asyncio.ensure_future(host.run(code()))
        await asyncio.sleep(1)
        host.crash()
        with pytest.raises(HostCrashed):
            await running
        await asyncio.sleep(10)

    simulate(scenario)
    gc.collect()
    assert ran == []


def test_a_generator_dropped_by_a_live_host_is_closed_there_and_by_a_dead_one_never():
    closed = []

    async def generator(name):
        try:
            yield 1
            yield 2
        finally:
            closed.append((name, CURRENT_LIFE.get().name))

    async def uses(holder):
        holder.append(generator("kept"))
        await anext(holder[0])
        async for _ in generator("dropped"):
            break
        await asyncio.sleep(1)

    async def scenario(world):
        host = world.host("a")
        holder = []
        await host.run(uses(holder))
        assert closed == [("dropped", "a#1")]
        host.crash()
        holder.clear()
        await asyncio.sleep(1)
        assert closed == [("dropped", "a#1")]

    simulate(scenario)


def test_what_a_dead_life_still_holds_cannot_act():
    async def scenario(world):
        host = world.host("a")
        acted = []
        life = host.life
        callbacks = []

        async def code():
            callbacks.append(asyncio.get_running_loop().create_future())
            callbacks[0].add_done_callback(acted.append)
            await callbacks[0]
            acted.append("went on")

        host.spawn(code())
        await asyncio.sleep(1)
        host.crash()
        callbacks[0].set_result(None)
        await asyncio.sleep(1)
        assert acted == []
        assert life is host.life
        with pytest.raises(HostCrashed):
            host.spawn(asyncio.sleep(0))

    simulate(scenario)


def test_a_host_crashes_itself_at_a_line_but_not_in_the_middle_of_one():
    async def scenario(world):
        host = world.host("a")
        reached = []

        async def code():
            for verb in (host.crash, host.pause, host.suspend):
                with pytest.raises(SimulationError, match="crash_here"):
                    verb()
            await host.crash_here()
            reached.append("after")

        with pytest.raises(HostCrashed):
            await host.run(code())
        assert reached == []
        assert not host.is_up

    simulate(scenario)


def test_a_restart_is_a_new_life_with_the_old_disk_or_an_empty_one():
    async def scenario(world):
        lives = []
        dropped = []

        async def boot(host):
            lives.append((host.life.name, await host.disk.names()))
            host.on_crash(lambda: dropped.append(host.life.name))
            file = await host.disk.open("kept", create=True)
            await file.sync()
            await host.disk.sync_directory()
            await asyncio.Event().wait()

        host = world.host("a", boot=boot)
        await asyncio.sleep(1)
        host.restart()
        await asyncio.sleep(1)
        host.crash()
        host.restart(wipe_disk=True)
        await asyncio.sleep(1)
        assert lives == [("a#1", []), ("a#2", ["kept"]), ("a#3", [])]
        assert dropped == ["a#1", "a#2"]

    simulate(scenario)


def test_a_crash_while_paused_or_asleep_leaves_nothing_behind():
    async def scenario(world):
        beaten = []
        host = world.host("a", boot=lambda host: beats(beaten))
        for stop in (host.pause, host.suspend):
            stop()
            await asyncio.sleep(3)
            host.crash()
            host.resume()
            host.wake()
            await asyncio.sleep(3)
            count = len(beaten)
            host.restart()
            await asyncio.sleep(0.5)
            assert len(beaten) == count + 1

    simulate(scenario)


def test_clocks_drift_jump_and_cannot_be_compared():
    async def scenario(world):
        fast, slow = world.host("fast", drift_ppm=100_000), world.host("slow", drift_ppm=-100_000)
        assert fast.clock.now_ms() != slow.clock.now_ms()
        begun = {host.name: host.clock.now_ms() for host in (fast, slow)}
        await asyncio.sleep(100)
        assert fast.clock.now_ms() - begun["fast"] == 110_000
        assert slow.clock.now_ms() - begun["slow"] == 90_000
        # Timers go by the host's own clock.
        woken = asyncio.get_running_loop().time()
        await fast.run(asyncio.sleep(11))
        assert asyncio.get_running_loop().time() == pytest.approx(woken + 10)
        fast.clock.jump(5_000)
        assert fast.clock.now_ms() - begun["fast"] == 126_000
        with pytest.raises(ValueError, match="never goes back"):
            fast.clock.jump(-1)

    simulate(scenario)


def test_a_deadlock_says_which_tasks_only_wait_for_their_host():
    async def scenario(world):
        host = world.host("a")
        running = asyncio.ensure_future(host.run(asyncio.sleep(1)))
        await asyncio.sleep(0)
        host.pause()
        await running

    with pytest.raises(Deadlock, match=r"\[paused\] task a#1/"):
        simulate(scenario)


@given(
    drift_ppm=st.integers(-500_000, 500_000),
    slept_ns=st.integers(0, 10**12),
    monotonic_ns=st.integers(0, 10**15),
)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_a_timer_is_due_at_the_first_moment_at_which_its_clock_says_so(drift_ppm, slept_ns, monotonic_ns):
    world_ns = 0
    clock = HostClock(lambda: world_ns, drift_ppm=drift_ppm)
    clock.suspend()
    world_ns = slept_ns
    assert clock.monotonic_ns() == 0
    assert clock.wake() == slept_ns
    world_ns = clock.world_ns_at(monotonic_ns)
    assert clock.monotonic_ns() >= monotonic_ns
    world_ns -= 1
    assert monotonic_ns == 0 or clock.monotonic_ns() < monotonic_ns


# -- the runtime of shells ---------------------------------------------------------------------------------------


def test_a_shell_gets_a_runtime_with_the_hosts_clock_and_stream():
    async def scenario(world):
        host = world.host("a")
        runtime = sim_runtime(host)
        clock: Clock = runtime.clock
        offload: Offload = runtime.offload
        assert clock.now_ms() == host.clock.now_ms()
        assert runtime.new_incarnation() != runtime.new_incarnation()
        assert await offload.run(sorted, [3, 1, 2]) == [1, 2, 3]
        with pytest.raises(ValueError, match="invalid literal"):
            await offload.run(int, "x")
        offload.close()
        return runtime.new_incarnation()

    assert simulate(scenario, seed=3) == simulate(scenario, seed=3) != simulate(scenario, seed=4)


def test_offloaded_work_takes_time_and_ends_even_if_nobody_waits():
    async def scenario(world):
        host = world.host("a")
        offload = sim_runtime(host, cost=lambda function, args: 2_000_000_000).offload
        done = []
        assert await host.run(offload.run(len, "abc")) == 3
        assert world.loop.now_ns == 2_000_000_000
        waiting = host.spawn(offload.run(done.append, "copied"))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        # The cancelled call came back only when its buffers are nobody's any more.
        assert done == ["copied"]
        assert world.loop.now_ns == 4_000_000_000

    simulate(scenario)


# -- worlds ------------------------------------------------------------------------------------------------------


def test_a_failing_run_says_how_to_replay_it(monkeypatch):
    async def scenario(world):
        raise AssertionError("promise broken")

    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/sim/test_x.py::test_y[5] (call)")
    with pytest.raises(AssertionError) as error:
        World(5).run(scenario)
    assert error.value.__notes__ == [
        "simulated with seed 5; replay: PYKVPOOL_SIM_SEED=5 pytest 'tests/sim/test_x.py::test_y[5]'"
    ]
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert replay_note(5) == "simulated with seed 5"
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    assert seeds(3) == [0, 1, 2]
    monkeypatch.setenv(SEED_VARIABLE, "5")
    assert seeds(3) == [5]


def test_names_are_taken_once_and_streams_are_one_per_name():
    world = World(1)
    world.host("a")
    with pytest.raises(ValueError, match="already"):
        world.host("a")
    assert world.draws("x") is world.draws("x")


def test_a_world_guards_the_modules_it_is_told_to():
    async def scenario(world):
        exec("import time; time.time()", {"__name__": "my_scenario"})

    with pytest.raises(EscapesSimulation):
        World(1, guarded=("my_scenario",)).run(scenario)
    World(1).run(scenario)
