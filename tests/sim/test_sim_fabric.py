"""``sim://`` keeps the promises of the contract of all fabrics: the same suite, in a simulated world."""

import inspect
import itertools

import pytest

from pykvpool_sim.world import World
from tests.fabric.bench import BIG_BYTES, SEGMENT_BYTES
from tests.fabric.conformance import FabricConformance
from tests.sim.fabric_bench import BACKEND, open_bench

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
