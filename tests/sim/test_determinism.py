"""Same seed, same run: in this process, in another, with other hashes, on another Python."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pykvpool_sim.trace import first_difference
from tests.sim import workload

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
SEED = 3


def environment(hash_seed):
    return {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'sim'}"}


def interpreter(version):
    """The path of a Python of this version that can run the workload, or None. pyenv's shims answer for versions that
    they do not have, and an interpreter may lack what the pool needs."""
    probe = "import sys, pykvpool.runtime, pykvpool_sim.world; print('Python %d.%d' % sys.version_info[:2])"
    for name in (f"python{version}", *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))):
        path = shutil.which(name)
        if path is None:
            continue
        done = subprocess.run([path, "-c", probe], capture_output=True, text=True, check=False, env=environment("0"))
        if done.stdout.strip() == f"Python {version}":
            return path
    return None


def digest_in_a_process(python, hash_seed, chooser="seeded"):
    command = [python, str(ROOT / "tests/sim/workload.py"), str(SEED), chooser]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(hash_seed))
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def summary(world):
    return [world.trace.digest(), str(world.trace.executed_count), str(len(world.history.operations))]


@pytest.mark.parametrize("chooser", sorted(workload.CHOOSERS))
def test_two_runs_in_one_process_are_equal_to_the_last_callback(chooser):
    first, second = (workload.run(SEED, chooser, keep_trace=True) for _ in range(2))
    assert first_difference(first.trace.entries(), second.trace.entries()) is None
    assert summary(first) == summary(second)
    assert list(first.history.lines()) == list(second.history.lines())


def test_the_workload_is_worth_comparing():
    world = workload.run(SEED, keep_trace=True)
    text = "\n".join(world.trace.entries())
    assert len(world.history.operations) > 100
    for expected in (
        "strike: ",
        "over: ",
        " crashes, power=",
        "/disk drew",
        "network drew",
        "schedule drew",
        "asyncio",
    ):
        assert expected in text, expected


def test_other_seeds_are_other_runs():
    assert len({workload.run(seed).trace.digest() for seed in range(3)}) == 3


@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_with_other_hashes_and_another_python_runs_the_same(version, hash_seed):
    python = sys.executable if version == f"{sys.version_info[0]}.{sys.version_info[1]}" else interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here that has what the pool needs")
    assert digest_in_a_process(python, hash_seed) == summary(workload.run(SEED))
