"""Programs written for Mooncake's API run unchanged on the pool, and do what was recorded."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.mooncake import recorded
from tests.mooncake.running import NAMES, PROGRAMS, ROOT, ours

#: What the pool did when the table was made; a change here is a change of behaviour that somebody must have meant.
RECORDED = {
    program: {each.name: each.pool for each in recorded.load() if each.program == program}
    for program in (*NAMES, "crash")
}


@pytest.mark.parametrize("name", NAMES)
def test_a_program_written_for_mooncake_runs_unchanged(name, master):
    if name == "tensors" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    seen = ours(name, master)
    assert not seen.died, seen.stderr
    assert seen.values == RECORDED[name]
    assert "Traceback" not in seen.stderr


def test_calls_that_a_program_should_not_make_are_codes_and_the_process_lives_on(master):
    seen = ours("crash", master)
    assert not seen.died, seen.stderr
    without = [
        part for part, module in (("tensor", "torch"), ("numpy", "numpy")) if importlib.util.find_spec(module) is None
    ]
    expected = {name: value for name, value in RECORDED["crash"].items() if not any(part in name for part in without)}
    assert seen.values == expected
    assert seen.values["the process is alive"] == "True"


def test_every_difference_to_mooncake_is_on_purpose():
    unmeant = [each for each in recorded.load() if each.differs and not recorded.reason_for(each)]
    assert not unmeant


def test_no_reason_is_given_for_what_does_not_differ():
    names = {each.name for each in recorded.load() if each.differs}
    assert not recorded.REASONS.keys() - names - recorded.SOMETIMES


def test_the_table_of_the_page_is_the_recorded_one():
    page = recorded.PAGE.read_text("utf-8")
    assert recorded.table(recorded.load()) in page


def test_the_page_speaks_of_every_method():
    from pykvpool_connector.mooncake import MooncakeDistributedStore

    methods = [name for name in dir(MooncakeDistributedStore) if not name.startswith("_") and name != "failed"]
    page = recorded.PAGE.read_text("utf-8")
    assert not [name for name in methods if f"`{name}`" not in page and f"`{name}(" not in page]


def test_the_example_runs(master):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "mooncake_program.py"), master],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'connector'}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "mooncake" in done.stdout


def test_the_programs_know_nothing_of_the_pool():
    assert not [path.name for path in PROGRAMS.glob("*.py") if "import pykvpool" in path.read_text("utf-8")]
