"""A whole pool under every fault there is: no promise breaks, it comes to rest, and the same seed is the same run."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pykvpool.client import View
from pykvpool_sim.cluster import Options, run_seed
from pykvpool_sim.cluster.cluster import Cluster
from pykvpool_sim.cluster.keys import SCOPES, KeySpace, value_of
from pykvpool_sim.cluster.shape import draw_shape
from pykvpool_sim.cluster.told import Comparison
from pykvpool_sim.cluster.troubles import KINDS, troubles_of
from pykvpool_sim.cluster.workload import VERBS
from pykvpool_sim.command.pages import failure_page
from pykvpool_sim.world import World
from tests.sim.conftest import SEEDS
from tests.sim.test_determinism import PYTHONS, environment, interpreter

WHOLE = Options()
ROOT = Path(__file__).parents[2]


def told(report, options=WHOLE):
    """What a failing test shows."""
    return "\n".join(failure_page(report, options))


@pytest.mark.slow
def test_no_promise_breaks_and_every_run_repeats_itself_in_another_process_with_other_hashes(swarm):
    """200 seeds, each twice; they have been running since the first test (see conftest)."""
    code, printed, figures = swarm.result()
    assert code == 0, printed
    assert figures["repeated"] == figures["seeds"] == SEEDS, printed
    assert not figures["unrepeatable"]


def test_without_faults_only_the_pool_itself_says_no():
    """Nothing to find, nothing to wait for, no room, no time, called off, a hold that ended: for no other reason."""
    for seed in range(6):
        report = run_seed(seed, Options(keep=(), chaos_ms=10_000))
        assert not report.failed, told(report)
        reasons = {name.partition(": ")[2] for name in report.calls}
        assert reasons <= {
            "ok",
            "KeyNotFound",
            "NotReady",
            "DeadlineExceeded",
            "CallCancelled",
            "Overloaded",
            "LeaseExpired",
            "open",
        }
        assert report.counts["sessions_expired_total"] == 0
        assert report.counts["segments_lost_total"] == 0


def test_a_few_seeds_exercise_nearly_everything():
    mid_transfer = Options(only=("kill in a transfer", "lingering writes", "slow fabric", "lost acknowledgements"))
    reports = [run_seed(seed) for seed in range(8)] + [run_seed(seed, mid_transfer) for seed in range(4)]
    assert not [report.seed for report in reports if report.failed]
    counts = sum((report.counts for report in reports), start=type(reports[0].counts)())
    for expected in (
        "objects_evicted_total",
        "waits_granted_total",
        "leases_expired_total",
        "extents_quarantined_total",
        "quarantine_fenced_total",
        "sessions_expired_total",
        "segments_lost_total",
        "objects_lost_total",
        "replicas_lost_total",
        "puts_degraded_total",
        "requests_repeated_total",
        "late landing",
        "broken queue pair",
        "strike in a transfer",
    ):
        assert counts[expected], expected
    assert {name.partition(":")[0] for report in reports for name in report.calls} >= {"put", "get", "match_prefix"}


def test_leaving_out_one_strike_leaves_the_others_as_they_were():
    whole = next(report for seed in range(20) if (report := run_seed(seed)).planned >= 3)
    for left_out in (0, 1):
        others = tuple(number for number in range(whole.planned) if number != left_out)
        part = run_seed(whole.seed, Options(keep=others))
        lines = whole.plan.splitlines()
        assert part.plan.splitlines() == lines[:left_out] + lines[left_out + 1 :]
        assert part.planned == whole.planned


def test_only_the_faults_that_were_asked_for_strike():
    report = run_seed(5, Options(only=("kill", "slow fabric")))
    assert set(report.struck) <= {"kill", "slow fabric"} and report.struck


def test_every_kind_of_fault_is_known_by_its_name_and_is_drawn():
    world = World(0)
    cluster = Cluster(world, draw_shape(world.draws("shape"), [weights for _, weights in VERBS.values()], 1_000))
    assert tuple(fault.name for fault in troubles_of(cluster)) == KINDS
    world.loop.close()
    drawn = {kind for seed in range(30) for kind in run_seed(seed, Options(chaos_ms=1_000)).struck}
    assert drawn == set(KINDS)


def test_the_bytes_of_a_key_are_its_own():
    space = KeySpace(3, 5)
    values = [value_of(scope, key) for scope in SCOPES for key in space.all()]
    assert len(set(values)) == len(values) == 30
    assert space.size_bytes() == sum(map(len, values))


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_with_other_hashes_runs_the_same(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'sim'}"}
    command = [sys.executable, "-m", "pykvpool_sim", "--seed", "6"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"digest {run_seed(6).digest}"


@pytest.mark.parametrize("version", PYTHONS)
def test_another_python_runs_the_same(version):
    python, done = interpreter(version), None
    if python is not None:
        command = [python, "-c", "from pykvpool_sim.cluster import run_seed; print(run_seed(4).digest)"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment("5"))
    if done is None or "ModuleNotFoundError" in done.stderr:
        pytest.skip(f"no Python {version} here that has what the pool needs")
    assert done.stdout.split() == [run_seed(4).digest], done.stderr


def test_a_longer_chaos_is_another_plan():
    options = Options(chaos_ms=3_000)
    assert run_seed(1, options).virtual_s < run_seed(1, replace(options, chaos_ms=9_000)).virtual_s


@pytest.mark.parametrize("kind", ["memory decay", "clock jump in a transfer"])
def test_what_is_aimed_at_objects_and_leases_is_noticed(kind):
    """Bits that flip where nothing lies, and clocks that leap while nobody holds a lease, make no difference."""
    noticed = found = 0
    for seed in range(12):
        options = Options(only=(kind,), chaos_ms=10_000)
        report = run_seed(seed, options)
        assert not report.failed, told(report, options)
        if report.fired:
            comparison = Comparison(report.told)
            run_seed(seed, replace(options, without=kind), comparison)
            found += 1
            noticed += comparison.differs
    assert found >= 2 and noticed > found / 2


def test_a_view_that_never_learns_that_its_lease_lapsed_is_found_out(monkeypatch):
    monkeypatch.setattr(View, "data", property(lambda view: view._data))
    options = Options(only=("isolate", "pause", "mute", "deafen"))
    assert any("a view of client-" in "".join(run_seed(seed, options).violations) for seed in range(30))


def test_a_cluster_may_be_reshaped():
    def alone(shape):
        return replace(shape, clients=shape.clients[:1])

    report = run_seed(2, Options(chaos_ms=2_000), reshape=alone)
    assert not report.failed and [host for host in report.hosts if host.startswith("client")] == ["client-0"]
