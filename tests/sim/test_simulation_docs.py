"""What docs/simulation.md shows, runs."""

import re
from pathlib import Path

from pykvpool_sim.command.main import PROMISES
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


def test_the_story_of_a_cluster_runs_as_it_is_written():
    (block,) = [block for block in BLOCKS if "def story(world)" in block]
    exec(compile(block, "docs/simulation.md", "exec"), {"__name__": "docs"})


def test_every_kind_of_promise_is_in_the_table_of_checkers():
    table = PAGE.partition("## Checkers")[2]
    for promise in PROMISES:
        assert re.search(rf"\| [^|]*\b{promise}\b[^|]* \|", table), promise


def test_every_module_is_named_or_explained():
    """A word of the page that looks like one of our files is one."""
    root = Path(__file__).parents[2]
    folders = (root / "sim/pykvpool_sim", root / "benchmarks", root / "tests/mutations", root / "tests/sim")
    names = {path.name for folder in folders for path in folder.rglob("*.py")}
    for name in re.findall(r"\b([a-z_]+\.py)\b", PAGE.replace("pykvpool/core/placement.py", "")):
        if not name.startswith("test_core_"):
            assert name in names, name
