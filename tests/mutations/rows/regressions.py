"""Bugs that the simulator found in the pool while it was built, put back: each has to be found by its own seed.

The seeds are in tests/sim/regressions/seeds.json, and run on the healthy pool with all other tests. When histories
shift (a new fault, another workload), a seed may no longer meet its bug. ``python -m tests.mutations --find-seeds 500``
puts each bug back, looks for the first seed that finds it, and writes the file anew.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.mutations.mutation import Mutation, selections
from tests.mutations.simulated import Simulation

SEEDS = Path(__file__).parents[2] / "sim/regressions/seeds.json"


def simulations() -> dict[str, Simulation]:
    """By the name of the bug."""
    return {
        name: Simulation(1, entry["seed"], tuple(entry["faults"]), tuple(entry["options"]))
        for name, entry in json.loads(SEEDS.read_text()).items()
    }


def keep(found: dict[str, Simulation]) -> None:
    """Write the file anew."""
    entries = [
        f'  {json.dumps(name)}: {{"seed": {one.first}, "faults": {json.dumps(list(one.faults))}, '
        f'"options": {json.dumps(list(one.options))}}}'
        for name, one in found.items()
    ]
    SEEDS.write_text("{\n" + ",\n".join(entries) + "\n}\n", "utf-8")


_seeds = simulations()

MUTATIONS = tuple(
    Mutation(name, rule, file, old, new, selections(*checks), _seeds[name])
    for name, rule, file, old, new, checks in (
        (
            "regression-a-revoke-that-did-not-get-through-is-forgotten",
            "P3: nothing leaks: what was given up is said until it is heard",
            "pykvpool/client/link.py",
            "                await asyncio.sleep(INSIST_PAUSE_S)\n",
            "                return\n",
            ["client/test_writer_rules.py"],
        ),
        (
            "regression-a-goodbye-frees-what-was-named-uncertain",
            "P2: quarantine ends on evidence",
            "pykvpool/core/fences.py",
            "for put_id in by_place.get(place, ()) if put_id not in self._given_up)\n",
            "for put_id in by_place.get(place, ()))\n",
            ["core/test_core_p2_no_reuse.py"],
        ),
        (
            "regression-room-is-made-on-a-preferred-node-where-the-put-cannot-start",
            "P6: at least what was asked, or nothing",
            "pykvpool/core/placement.py",
            "                if preferred and enough and (yield",
            "                if preferred and (yield",
            ["core/test_core_p6_eviction.py"],
        ),
    )
)
