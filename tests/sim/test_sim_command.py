"""``pykvpool sim``: what it says when all is well, and when it is not."""

import re
import shlex
import time
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from pykvpool.node.mount import Mounted
from pykvpool_sim.cluster import Options
from pykvpool_sim.command import guard, main
from pykvpool_sim.command.main import sim
from pykvpool_sim.command.pages import replay_command
from pykvpool_sim.command.shrink import shrink
from pykvpool_sim.errors import Hung
from pykvpool_sim.plan import Strike

ROOT = Path(__file__).parents[2]


def run(*arguments):
    return CliRunner().invoke(sim, arguments, catch_exceptions=False)


@pytest.fixture
def fences_that_lie(monkeypatch):
    """Nodes say that a writer is fenced, and do nothing about it."""

    async def fence(self, name, incarnation, ban):
        pass

    monkeypatch.setattr(Mounted, "fence", fence)


def test_one_seed_tells_its_faults_its_counts_and_its_digest():
    done = run("--seed", "2", "--chaos-s", "5")
    assert done.exit_code == 0, done.output
    for expected in ("the faults:", "calm for", "calls/s", "puts_committed_total", "put: ok"):
        assert expected in done.output
    assert re.search(r"^digest [0-9a-f]{32}$", done.output, re.MULTILINE)


def test_many_seeds_are_summed_compared_and_run_twice():
    done = run("--seeds", "6", "--chaos-s", "3", "--jobs", "1", "--twice", "--compare")
    assert done.exit_code == 0, done.output
    assert "6 seeds" in done.output and "took effect" in done.output


def test_seeds_run_in_several_processes():
    done = run("--seeds", "4", "--chaos-s", "2", "--jobs", "2")
    assert done.exit_code == 0, done.output
    assert "4 seeds" in done.output


def test_a_trace_shows_calls_facts_landings_and_strikes():
    done = run("--seed", "2", "--trace", "--chaos-s", "8")
    for expected in ("call     client-", "return   client-", "fact     PutOpened(", "landing  put ", "strike   "):
        assert expected in done.output


FIRST = ("--seeds", "60", "--jobs", "1", "--first-failure", "--faults", "slow fabric,lingering writes,isolate,kill")


@pytest.fixture
def few_runs(monkeypatch):
    """Shrinking ends after some runs, however long they take."""
    monkeypatch.setattr(
        main, "shrink", lambda *given, **more: shrink(*given, **{**more, "limit_s": 1e9, "max_runs": 15})
    )


def test_a_broken_promise_comes_with_its_story_its_faults_and_a_command_that_breaks_it_again(fences_that_lie, few_runs):
    done = run(*FIRST)
    assert done.exit_code == 1
    assert re.search(r"^seed \d+ breaks ", done.output, re.MULTILINE) and "P2 at " in done.output
    assert "the schedule (" in done.output and "strikes, " in done.output
    assert "the story:" in done.output and "fact     " in done.output
    command = re.search(r"^replay: pykvpool sim (.*)$", done.output, re.MULTILINE).group(1)
    assert "--keep" in command
    again = run(*shlex.split(command), "--no-shrink")
    assert again.exit_code == 1 and "P2 at " in again.output


def test_a_promise_that_is_not_judged_is_not_missed(fences_that_lie):
    done = run(*FIRST, "--no-shrink")
    (seed,) = re.findall(r"^seed (\d+) breaks ", done.output, re.MULTILINE)
    faults = FIRST[FIRST.index("--faults") :]
    assert run("--seed", seed, *faults, "--off", "P1,P2,P3,calm,bug").exit_code == 0


def test_strikes_can_be_given_in_place_of_those_of_the_seed():
    strikes = "pause at master from 500 for 1000; kill at client-0 from 2000 for 10"
    done = run("--seed", "2", "--chaos-s", "3", "--strikes", strikes)
    assert done.exit_code == 0, done.output
    planned = [line.split("ms", 1)[1].strip() for line in done.output.splitlines() if " ms  " in line]
    assert planned == ["pause at master for 1000 ms", "kill at client-0 for 10 ms", "calm for 0 ms"]
    given = Options(strikes=(Strike(500, 1_000, "pause", "master"),))
    assert replay_command(2, given) == "pykvpool sim --seed 2 --strikes 'pause at master from 500 for 1000'"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--faults", "earthquake"], "power cut"),
        (["--off", "P99"], "P1"),
        (["--keep", "one"], "0,3,7"),
        (["--seed", "1", "--seeds", "2"], "either"),
        (["--trace"], "--seed"),
        (["--without", "earthquake"], "kill"),
        (["--strikes", "kill the client"], "no strike"),
        (["--turns", "client-0"], "client-0:3-7,9;client-2:1"),
        (["--turns", "client-0:x"], "client-0:3-7,9;client-2:1"),
        (["--tape", "1:2:3"], "15:3,23:1"),
        (["--tape", "-1:2"], "bounds"),
    ],
)
def test_wrong_usage_says_what_is_right(arguments, says):
    done = run(*arguments)
    assert done.exit_code == 2 and says in done.output


def test_the_replay_command_says_all_that_differs_from_the_seed():
    options = Options(
        only=("kill", "slow fabric"),
        everywhere=True,
        without="kill",
        keep=(1, 4),
        hosts=("node-0", "client-1"),
        turns=frozenset({"client-1/3", "client-1/4", "client-1/9"}),
        tape=b"\0\0\3",
        chaos_ms=9_000,
        off=frozenset({"P7", "P1"}),
    )
    assert replay_command(7, options) == (
        "pykvpool sim --seed 7 --everywhere --faults 'kill,slow fabric' --without 'kill' --keep 1,4 "
        "--hosts node-0,client-1 "
        "--turns 'client-1:3-4,9' --tape 2:3 --chaos-s 9 --off P1,P7"
    )
    plain = Options(keep=(), turns=frozenset(), tape=b"")
    assert replay_command(7, plain) == "pykvpool sim --seed 7 --keep none --turns 'none' --tape none"


def test_code_that_never_awaits_is_interrupted():
    with pytest.raises(Hung, match="of a core"), guard.time_limit(0.05):
        while True:
            pass


def test_a_machine_that_is_busy_with_other_things_interrupts_nothing():
    with guard.time_limit(0.05):
        time.sleep(0.1)


def test_the_command_joins_pykvpool_by_its_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["pykvpool.commands"]["sim"].partition(":")
    assert (module, name) == (sim.callback.__module__, sim.name)
