"""Histories in which the simulator once found a bug of the pool: they end well now.

Each bug can be put back (tests/mutations/rows/regressions.py), and then its seed finds it: see `make test-mutations`.
"""

import pytest
from click.testing import CliRunner

from pykvpool_sim.command.main import sim
from tests.mutations.rows.regressions import MUTATIONS, simulations


@pytest.mark.parametrize("name", sorted(simulations()))
def test_a_history_that_once_broke_a_promise_ends_well(name):
    done = CliRunner().invoke(sim, [*simulations()[name].arguments, "--no-shrink"])
    assert done.exit_code == 0, done.output


def test_every_bug_that_was_put_back_has_its_seed_and_the_other_way_round():
    assert {each.name for each in MUTATIONS} == set(simulations())
    assert all(each.simulation is not None and each.simulation.seeds == 1 for each in MUTATIONS)
