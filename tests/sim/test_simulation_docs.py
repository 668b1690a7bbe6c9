"""What docs/simulation.md shows, runs."""

import re
from pathlib import Path

from pykvpool_sim.faults import FAULTS, Fault

PAGE = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_first_scenario_runs_as_it_is_written():
    assert "async def scenario(world)" in BLOCKS[0]
    exec(compile(BLOCKS[0], "docs/simulation.md", "exec"), {"__name__": "docs"})


def test_the_new_fault_is_one():
    (block,) = [block for block in BLOCKS if "def wipe" in block]
    scope = {"Fault": Fault}
    exec(compile(block, "docs/simulation.md", "exec"), scope)
    assert scope["FAULTS"][-1].name == "wipe"
    assert scope["FAULTS"][-1].name not in {fault.name for fault in FAULTS}


def test_every_module_is_named_or_explained():
    """A word of the page that looks like one of our files is one."""
    for name in re.findall(r"\b([a-z_]+\.py)\b", PAGE):
        found = list(Path(__file__).parents[2].glob(f"sim/pykvpool_sim/{name}")) + list(
            Path(__file__).parent.glob(name)
        )
        assert found, name
