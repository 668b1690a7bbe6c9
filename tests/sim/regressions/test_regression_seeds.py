"""Histories in which the simulator once found a bug of the pool: they end well now.

Each bug can be put back (tests/mutations/rows/regressions.py), and then its seed finds it: see `make test-mutations`.
"""

import pytest

from pykvpool_sim.cluster import Options, run_seed
from pykvpool_sim.command.words import read_strikes
from tests.mutations.rows.regressions import MUTATIONS, simulations


@pytest.mark.parametrize("name", sorted(simulations()))
def test_a_history_that_once_broke_a_promise_ends_well(name):
    simulation = simulations()[name]
    strikes = read_strikes(simulation.options[-1]) if simulation.options else ()
    report = run_seed(simulation.first, Options(only=simulation.faults, strikes=strikes))
    assert not report.failed, "\n".join([*report.violations, report.plan])


def test_every_bug_that_was_put_back_has_its_seed_and_the_other_way_round():
    assert {each.name for each in MUTATIONS} == set(simulations())
    assert all(each.simulation is not None and each.simulation.seeds == 1 for each in MUTATIONS)
