"""The loop: asyncio as everybody knows it, on time that costs nothing, with every way out locked."""

import asyncio
import gc
import time
import traceback

import pytest

from pykvpool_sim import loop as loop_module
from pykvpool_sim.choosers import Fifo, Tape
from pykvpool_sim.errors import Deadlock, EscapesSimulation, Livelock, OutOfTime, Unhandled
from pykvpool_sim.loop import SimLoop


def run(main, **options):
    return SimLoop(**options).run(main)


def now():
    return asyncio.get_running_loop().time()


def test_a_day_passes_in_no_time():
    async def main():
        await asyncio.sleep(86_000)
        return now()

    assert run(main()) == 86_000


def test_sums_of_floats_are_the_times_people_mean():
    async def main():
        for _ in range(3):
            await asyncio.sleep(0.1)
        return now()

    assert run(main()) == 0.3


def test_waiting_for_the_rest_of_a_nanosecond_moves_time():
    async def main():
        when = 0.1 + 0.2  # a little more than 0.3
        while now() < when:
            await asyncio.sleep(when - now())
        return now()

    assert run(main()) == pytest.approx(0.3, abs=2e-9)


def test_timers_of_one_instant_fire_in_the_order_in_which_they_were_set():
    fired = []

    async def main():
        loop = asyncio.get_running_loop()
        for number in range(5):
            loop.call_later(1, fired.append, number)
        loop.call_later(0.5, fired.append, "early")
        loop.call_later(0.7, fired.append, "cancelled").cancel()
        await asyncio.sleep(2)

    run(main())
    assert fired == ["early", 0, 1, 2, 3, 4]


def test_cancelled_timers_are_swept_out():
    async def main():
        loop = asyncio.get_running_loop()
        for _ in range(10_000):
            loop.call_later(1_000, print).cancel()
        return len(loop._timers._heap)

    assert run(main()) < 200


def test_timeouts_queues_locks_shields_groups_and_generators_work():
    closed = []

    async def numbers():
        try:
            for number in range(3):
                await asyncio.sleep(1)
                yield number
        finally:
            await asyncio.sleep(1)
            closed.append(now())

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 1)
        assert now() == 3
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(5), 0)
        assert await asyncio.wait_for(asyncio.sleep(1, "done"), 5) == "done"

        queue = asyncio.Queue(1)
        condition = asyncio.Condition()
        semaphore = asyncio.Semaphore(2)
        seen = []

        async def produce():
            for number in range(5):
                async with semaphore:
                    await queue.put(number)

        async def consume():
            while len(seen) < 5:
                seen.append(await queue.get())
            async with condition:
                condition.notify_all()

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(consume())
            async with condition:
                await condition.wait_for(lambda: len(seen) == 5)
        assert seen == [0, 1, 2, 3, 4]

        inner = asyncio.ensure_future(asyncio.sleep(2, "kept"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.shield(inner)
        assert await inner == "kept"

        async for _ in numbers():
            break
        begun = now()
        await asyncio.sleep(5)
        assert closed == [begun + 1]  # dropped at once, closed by a task of its own
        results = [await next_done for next_done in asyncio.as_completed([asyncio.sleep(3 - n, n) for n in range(3)])]
        assert results == [2, 1, 0]

    run(main())


def test_gather_is_asyncios_own_to_all_who_use_it():
    async def value(number, after_s=0.0):
        await asyncio.sleep(after_s)
        return number

    async def fails():
        raise KeyError("x")

    async def main():
        done = asyncio.ensure_future(value(0))
        await done
        shared = asyncio.ensure_future(value(1, 0.002))
        assert await asyncio.gather(done, value(2, 0.001), shared, shared) == [0, 2, 1, 1]
        assert await asyncio.gather(done) == [0]
        assert await asyncio.gather() == []
        with pytest.raises(KeyError):
            await asyncio.gather(value(1), fails())
        cancelled = asyncio.ensure_future(value(3, 1))
        cancelled.cancel()
        results = await asyncio.gather(value(1), fails(), cancelled, return_exceptions=True)
        assert [type(result) for result in results] == [int, KeyError, asyncio.CancelledError]
        with pytest.raises(asyncio.CancelledError):
            await asyncio.gather(value(1), cancelled)
        waiting = [asyncio.ensure_future(value(number, 60)) for number in range(2)]
        for keep in (False, True):
            gathering = asyncio.gather(*waiting, return_exceptions=keep)
            await asyncio.sleep(0)
            gathering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gathering
            assert all(child.cancelled() for child in waiting)
            waiting = [asyncio.ensure_future(value(number, 60)) for number in range(2)]
        for child in waiting:
            child.cancel()
        return "the same"

    assert run(main()) == asyncio.run(main()) == "the same"


def test_first_in_first_out_is_the_order_of_asyncio_itself():
    """One workload on the real loop and on ours: whatever order asyncio has, we have."""

    def workload():
        order = []

        async def worker(name, event, lock, queue):
            order.append((name, "begins"))
            await event.wait()
            async with lock:
                order.append((name, "holds"))
                await asyncio.sleep(0)
            queue.put_nowait(name)
            order.append((name, await queue.get()))
            asyncio.get_running_loop().call_soon(order.append, (name, "soon"))
            await asyncio.gather(*(asyncio.sleep(0) for _ in range(2)))

        async def main():
            event, lock, queue = asyncio.Event(), asyncio.Lock(), asyncio.Queue()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(worker(name, event, lock, queue)) for name in "abcd"]
                await asyncio.sleep(0)
                event.set()
                tasks[2].cancel()
            await asyncio.wait(tasks)
            return order

        return main()

    assert run(workload(), chooser=Fifo()) == asyncio.run(workload())


def test_it_serves_asyncio_runner_and_run_forever():
    async def main():
        loop = asyncio.get_running_loop()
        loop.call_later(3, loop.stop)
        return "from a runner"

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        assert runner.run(main()) == "from a runner"
        runner.get_loop().run_forever()
        assert runner.get_loop().now_ns == 3_000_000_000


def test_sets_of_tasks_and_futures_are_walked_in_the_order_of_creation():
    async def main():
        loop = asyncio.get_running_loop()
        things = []
        for _ in range(20):
            things += [loop.create_future(), asyncio.ensure_future(asyncio.sleep(0))]
        gathered = asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
        assert hash(gathered) == hash(gathered)
        order = [thing.number for thing in set(things)]
        await gathered
        return order

    assert run(main()) == run(main())


# -- when it cannot go on ----------------------------------------------------------------------------------------


def test_a_deadlock_shows_every_task_and_where_it_stands():
    async def holds_and_waits(mine, other):
        async with mine:
            await asyncio.sleep(1)
            async with other:
                pass

    async def main():
        first, second = asyncio.Lock(), asyncio.Lock()
        async with asyncio.TaskGroup() as group:
            group.create_task(holds_and_waits(first, second), name="left")
            group.create_task(holds_and_waits(second, first), name="right")

    with pytest.raises(Deadlock) as error:
        run(main())
    text = str(error.value)
    assert "task left" in text
    assert "task right" in text
    assert text.count("async with other:") == 2
    assert "Lock.acquire" in text


def test_a_livelock_names_what_spins(monkeypatch):
    monkeypatch.setattr(loop_module, "LIVELOCK_CALLBACKS", 1_000)

    async def spins():
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="spins"):
        run(spins())


def test_a_scenario_that_outlives_its_limit_ends():
    async def beats_for_ever():
        while True:
            await asyncio.sleep(1)

    with pytest.raises(OutOfTime, match=r"(?s)10.0 virtual seconds.*beats_for_ever"):
        run(beats_for_ever(), limit_s=10)


def test_an_error_nobody_awaits_ends_the_run():
    async def fails():
        raise KeyError("lost")

    async def main():
        asyncio.ensure_future(fails())  # noqa: RUF006 -- nobody keeps it: that is the point
        await asyncio.sleep(1)

    with pytest.raises(Unhandled, match="lost"):
        run(main())


def test_an_error_in_a_reference_cycle_is_heard_of_in_the_end():
    async def fails():
        raise KeyError("lost")

    async def main():
        cycle = [asyncio.ensure_future(fails())]
        cycle.append(cycle)
        await asyncio.sleep(1)

    with pytest.raises(Unhandled, match="lost"):
        run(main())


def test_the_garbage_collector_is_held_during_a_run_and_let_go_after():
    async def main():
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 1_000

    run(main())
    assert gc.isenabled()
    assert gc.get_freeze_count() < 1_000  # Python 3.12 begins with some


def test_an_error_in_a_callback_ends_the_run_unless_a_handler_is_set():
    contexts = []

    async def main(handler):
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(handler)
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(Unhandled, match="ZeroDivisionError"):
        run(main(None))
    run(main(lambda loop, context: contexts.append(context["exception"])))
    assert [type(error) for error in contexts] == [ZeroDivisionError]


def test_tasks_left_over_are_cancelled_in_order_and_their_cleanup_runs():
    ended = []

    async def stays(name):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            ended.append(name)

    async def main():
        asyncio.get_running_loop().kept = [asyncio.ensure_future(stays(name)) for name in "abc"]
        await asyncio.sleep(1)

    run(main())
    assert ended == ["a", "b", "c"]


# -- no way out --------------------------------------------------------------------------------------------------

SERVED = {
    "call_at", "call_exception_handler", "call_later", "call_soon", "call_soon_threadsafe", "close", "create_future",
    "create_task", "default_exception_handler", "get_debug", "get_exception_handler", "get_task_factory", "is_closed",
    "is_running", "run_forever", "run_until_complete", "set_debug", "set_exception_handler", "set_task_factory",
    "shutdown_asyncgens", "shutdown_default_executor", "stop", "time",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", sorted(name for name in dir(asyncio.AbstractEventLoop) if name[0] != "_" and name not in SERVED)
)
def test_what_the_loop_cannot_simulate_it_refuses_by_name(name):
    loop = SimLoop()
    with pytest.raises(EscapesSimulation, match=rf"loop\.{name}\(\)"):
        getattr(loop, name)()
    loop.close()


def test_a_task_factory_is_refused():
    with pytest.raises(EscapesSimulation):
        SimLoop().set_task_factory(lambda loop, coro: None)


@pytest.mark.parametrize(
    "call",
    [
        "time.time()", "time.monotonic()", "time.perf_counter_ns()", "time.sleep(0)", "random.random()",
        "random.shuffle([])", "os.urandom(1)", "uuid.uuid4()", "socket.socket()", "threading.Thread()",
        "subprocess.Popen(['true'])", "asyncio.to_thread(print)",
    ],
)  # fmt: skip
def test_guarded_code_cannot_touch_the_real_world(call):
    async def main():
        scope = {"__name__": "pykvpool.pretended"}
        exec("import asyncio, os, random, socket, subprocess, threading, time, uuid", scope)
        result = eval(call, scope)
        if asyncio.iscoroutine(result):
            await result

    with pytest.raises(EscapesSimulation, match=r"inside a simulation|run_in_executor"):
        run(main())


def test_tools_outside_may_read_the_clock_and_all_is_put_back_after_the_run():
    before = time.monotonic, asyncio.wait_for, asyncio.as_completed

    async def main():
        assert time.monotonic is not before[0]
        return time.monotonic()

    assert run(main()) > 0
    assert (time.monotonic, asyncio.wait_for, asyncio.as_completed) == before
    assert asyncio._get_running_loop() is None


def test_loops_do_not_nest_and_a_closed_one_stays_closed():
    async def main():
        with pytest.raises(RuntimeError, match="inside another loop"):
            SimLoop().run_until_complete(None)
        with pytest.raises(RuntimeError, match="running loop cannot be closed"):
            asyncio.get_running_loop().close()

    loop = SimLoop()
    loop.run_until_complete(main())
    loop.close()
    loop.close()
    assert loop.is_closed()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print)


def test_a_tape_reorders_tasks_but_never_the_plain_callbacks_of_one_owner():
    async def main():
        loop = asyncio.get_running_loop()
        order = []

        async def step(name):
            order.append(name)

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(step(name))
                loop.call_soon(order.append, f"soon {name}")
        return order

    plain = run(main())
    assert plain == ["a", "soon a", "b", "soon b", "c", "soon c"]
    orders = [run(main(), chooser=Tape([first, second, first])) for first in range(3) for second in range(3)]
    assert any(order != plain for order in orders)
    for order in orders:
        assert [name for name in order if name.startswith("soon")] == ["soon a", "soon b", "soon c"]


def test_the_traceback_of_an_error_is_the_codes_own():
    async def main():
        raise ValueError("here")

    with pytest.raises(ValueError, match="here") as error:
        run(main())
    assert traceback.extract_tb(error.value.__traceback__)[-1].name == "main"
