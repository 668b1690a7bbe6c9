"""From a failing run to the command that replays it.

Tests take their seeds from `seeds`; whatever goes wrong in a `World` gets a note with its seed and the command. The
command sets `SEED_VARIABLE`, and then `seeds` gives that one seed alone.
"""

from __future__ import annotations

import os

#: Set to a seed, it is the only one that runs.
SEED_VARIABLE = "PYKVPOOL_SIM_SEED"


def seeds(count: int) -> list[int]:
    """The seeds 0 to `count` - 1, or the one in the environment."""
    chosen = os.environ.get(SEED_VARIABLE)
    return list(range(count)) if chosen is None else [int(chosen)]


def replay_note(seed: int) -> str:
    """What to add to an error of a run with `seed`."""
    # pytest says which test runs: "tests/sim/test_world.py::test_it[3] (call)".
    test, _, _ = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")
    if not test:
        return f"simulated with seed {seed}"
    return f"simulated with seed {seed}; replay: {SEED_VARIABLE}={seed} pytest '{test}'"
