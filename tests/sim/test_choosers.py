"""Choosers: schedules that find what the usual one hides, and that can be kept, replayed and shrunk."""

import asyncio
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from pykvpool_sim.choosers import PCT_PATIENCE, Fifo, Pct, Recorder, Seeded, Tape
from pykvpool_sim.draws import Draws, derive
from pykvpool_sim.loop import SimLoop
from pykvpool_sim.trace import Trace, first_difference


async def lost_update():
    """Two tasks add to a counter with a step between reading and writing. asyncio's own order happens to be safe:
    the second reads just after the first wrote."""
    counter = 0

    async def add(steps_before):
        nonlocal counter
        for _ in range(steps_before):
            await asyncio.sleep(0)
        read = counter
        await asyncio.sleep(0)
        counter = read + 1

    async with asyncio.TaskGroup() as group:
        group.create_task(add(0))
        group.create_task(add(1))
    return counter


def run(main, chooser):
    return SimLoop(chooser).run(main)


def test_first_in_first_out_misses_the_race():
    assert run(lost_update(), Fifo()) == 2


def test_even_draws_find_the_race():
    results = {run(lost_update(), Seeded(Draws(seed, "schedule"))) for seed in range(50)}
    assert results == {1, 2}


def test_pct_finds_a_task_that_begins_and_then_sleeps_very_long():
    """Even draws let every task run now and then; a bug that needs one to be left alone for 60 steps is PCT's."""

    async def left_alone_for():
        steps = 0

        async def busy():
            nonlocal steps
            for _ in range(60):
                await asyncio.sleep(0)
                steps += 1

        async def sleeper():
            begun = steps
            await asyncio.sleep(0)
            return steps - begun

        async with asyncio.TaskGroup() as group:
            group.create_task(busy())
            slept = group.create_task(sleeper())
        return slept.result()

    assert max(run(left_alone_for(), Seeded(Draws(seed, "schedule"))) for seed in range(50)) < 20
    assert max(run(left_alone_for(), Pct(Draws(seed, "schedule"), depth=2, steps=10)) for seed in range(50)) > 50


def test_pct_does_not_let_a_spinning_task_spin_for_ever():
    async def waits_by_spinning():
        ready = False

        async def sets():
            nonlocal ready
            await asyncio.sleep(0)
            ready = True

        async def spins():
            turns = 0
            while not ready:
                turns += 1
                await asyncio.sleep(0)
            return turns

        setter = asyncio.ensure_future(sets())
        turns = await spins()
        await setter
        return turns

    turns = [run(waits_by_spinning(), Pct(Draws(seed, "schedule"), depth=1)) for seed in range(10)]
    assert max(turns) > 100
    assert max(turns) < 10 * PCT_PATIENCE


def test_pct_refuses_a_depth_or_length_of_nothing():
    with pytest.raises(ValueError, match="at least 1"):
        Pct(random.Random(1), depth=0)


@pytest.mark.parametrize("seed", range(5))
def test_a_recorded_schedule_replays_from_its_tape(seed):
    recorder = Recorder(Seeded(Draws(seed, "schedule")))
    first, second = Trace(keep_all=True), Trace(keep_all=True)
    for trace, chooser in ((first, recorder), (second, Tape(recorder.tape))):
        SimLoop(chooser, trace).run(lost_update())
    assert first_difference(first.entries(), second.entries()) is None


def test_hypothesis_shrinks_a_schedule_to_the_one_choice_that_matters():
    tape = hypothesis.find(
        st.lists(st.integers(0, 5), max_size=12),
        lambda tape: run(lost_update(), Tape(tape)) == 1,
        settings=hypothesis.settings(derandomize=True, database=None, max_examples=500),
    )
    assert sum(choice > 0 for choice in tape) == 1
    assert run(lost_update(), Tape(tape)) == 1


# -- draws and traces --------------------------------------------------------------------------------------------


def test_streams_do_not_disturb_each_other():
    quiet, busy = Draws(7, "network"), Draws(7, "disk")
    alone = [Draws(7, "network").random() for _ in range(1)]
    busy.shuffle(list(range(100)))
    assert [quiet.random()] == alone
    assert Draws(7, "a").random() != Draws(7, "b").random() != Draws(8, "b").random()


def test_a_streams_numbers_are_the_same_for_ever():
    """In every version of Python that the project supports: an old seed tells its old story."""
    draws = Draws(7, "network")
    assert derive(7, "network") == 0x65752073709B46D101CCCC911BF9780E
    seen = [draws.randrange(1000), draws.choice("abcdef"), draws.between(3, 9), round(draws.uniform(0, 1), 6)]
    assert seen == [542, "d", 4, 0.320927]


def test_what_is_off_draws_nothing():
    told = []
    draws = Draws(1, "faults", lambda name, value: told.append(name))
    assert draws.chance(0) is False
    assert draws.between(5, 5) == 5
    assert told == []
    draws.chance(0.5)
    assert told == ["faults"]


def test_the_first_difference_of_two_traces_is_named():
    assert first_difference(["a", "b"], ["a", "b"]) is None
    assert first_difference(["a", "b"], ["a", "c"]) == "entry 1: 'b' against 'c'"
    assert first_difference(["a"], ["a", "c"]) == "entry 1: one trace ends, the other goes on with 'c'"
