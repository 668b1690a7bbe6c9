"""The history: what was asked and answered, with enough order and doubt in it for checkers."""

import asyncio
import json

import pytest

from pykvpool.errors import KeyNotFound, Unavailable
from pykvpool_sim.choosers import Fifo
from pykvpool_sim.history import Outcome
from pykvpool_sim.world import World


def simulate(scenario):
    return World(1, chooser=lambda draws: Fifo()).run(scenario)


async def answers(after_s, value):
    await asyncio.sleep(after_s)
    if isinstance(value, Exception):
        raise value
    return value


def test_every_call_has_its_times_and_its_outcome():
    async def scenario(world):
        record = world.history.record
        assert await record("c1", "get", answers(1, b"x"), key="k") == b"x"
        with pytest.raises(KeyNotFound):
            await record(
                "c1", "get", answers(0, KeyNotFound("no")), failed=lambda error: isinstance(error, KeyNotFound)
            )
        with pytest.raises(Unavailable):
            await record("c1", "put", answers(2, Unavailable("gone")))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await record("c2", "put", answers(5, None))
        return world.history

    history = simulate(scenario)
    assert [(each.name, each.outcome, each.value) for each in history.operations] == [
        ("get", Outcome.OK, b"x"),
        ("get", Outcome.FAILED, "KeyNotFound: no"),
        ("put", Outcome.UNKNOWN, "Unavailable: gone"),
        ("put", Outcome.UNKNOWN, "CancelledError"),
    ]
    first = history.operations[0]
    assert (first.invoked_ns, first.returned_ns, first.arguments) == (0, 1_000_000_000, {"key": "k"})
    moments = [moment for each in history.operations for moment in (each.invoked_at, each.returned_at)]
    assert moments == sorted(set(moments))
    assert [each.process for each in history.of("put")] == ["c1", "c2"]


def test_what_a_crash_cut_off_stays_open():
    async def scenario(world):
        host = world.host("a")
        host.spawn(world.history.record("a", "put", answers(5, None)))
        await asyncio.sleep(1)
        host.crash()
        await asyncio.sleep(10)
        return world.history.operations

    (operation,) = simulate(scenario)
    assert operation.outcome is Outcome.OPEN
    assert operation.returned_ns is None


def test_an_operation_ends_once():
    async def scenario(world):
        operation = world.history.invoke("a", "put")
        with pytest.raises(ValueError, match="cannot go"):
            world.history.returns(operation, Outcome.OPEN)
        world.history.returns(operation, Outcome.OK)
        with pytest.raises(ValueError, match="cannot go"):
            world.history.returns(operation, Outcome.FAILED)

    simulate(scenario)


def test_a_history_can_be_kept_as_lines_of_json():
    async def scenario(world):
        await world.history.record("c1", "get", answers(1, b"x"), key=b"k")
        return [json.loads(line) for line in world.history.lines()]

    (line,) = simulate(scenario)
    assert line["value"] == "b'x'"
    assert line["arguments"] == {"key": "b'k'"}
    assert (line["outcome"], line["returned_ns"]) == ("ok", 1_000_000_000)
