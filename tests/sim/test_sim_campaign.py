"""Campaigns: which runs a seed gets, what they are compared by, and the processes that carry them out."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from pykvpool_sim.cluster import Options, Report, run_seed
from pykvpool_sim.cluster.told import Comparison, told_by
from pykvpool_sim.cluster.troubles import KINDS
from pykvpool_sim.command.campaign import Campaign, Owed, Summary, Wishes
from pykvpool_sim.command.main import sim
from pykvpool_sim.command.pages import summary_page
from pykvpool_sim.command.progress import ProgressLine
from pykvpool_sim.command.record import read_record, write_record
from pykvpool_sim.command.workers import Ran, Run, _Worker, run_in_processes
from pykvpool_sim.history import History, Outcome

# -- what clients were told ------------------------------------------------------------------------------------------


def history_of(*calls, listener=None):
    """(process, name, value) each, called and returned in turn; no value: it never returned."""
    history = History(lambda: 0, listener)
    for process, name, *value in calls:
        operation = history.invoke(process, name)
        if value:
            history.returns(operation, Outcome.OK, value[0])
    return history


def compared(first, second, ignored=frozenset()):
    """(what is known while the second runs, what is known in the end)."""
    comparison = Comparison(told_by(history_of(*first)), ignored)
    history = history_of(*second, listener=comparison)
    meanwhile = comparison.differs
    comparison.finish(history)
    return meanwhile, comparison.differs


def test_equal_histories_do_not_differ_in_whatever_order_the_clients_take_turns():
    first = [("a#1", "put", 1), ("b#1", "get", 2), ("a#1", "get", 3)]
    assert compared(first, [first[1], first[0], first[2]]) == (False, False)


def test_another_answer_shows_while_the_run_goes_on():
    assert compared([("a#1", "get", 1), ("a#1", "get", 2)], [("a#1", "get", 1), ("a#1", "get", 3)]) == (True, True)


def test_a_call_too_many_shows_at_once_and_a_missing_one_in_the_end():
    one, two = [("a#1", "get", 1)], [("a#1", "get", 1), ("a#1", "get", 2)]
    assert compared(one, two) == (True, True)
    assert compared(two, one) == (False, True)


def test_a_call_that_never_returned_is_another_answer():
    assert compared([("a#1", "get", 1)], [("a#1", "get")]) == (False, True)


def test_what_a_fault_does_to_whom_it_stops_is_no_effect():
    first = [("a#1", "get", 1), ("b#1", "get", 1), ("a#2", "get", 5)]
    second = [("a#1", "get", 2), ("b#1", "get", 1)]
    assert compared(first, second, frozenset({"a"})) == (False, False)
    assert compared(first, second) == (True, True)


def test_the_lives_of_a_host_are_one_sequence_of_calls():
    assert compared([("a#1", "get", 1), ("a#2", "get", 2)], [("a#1", "get", 1), ("a#1", "get", 2)]) == (False, False)


def test_a_run_ends_once_it_differs():
    whole = run_seed(3)
    kind = next(iter(whole.fired))
    comparison = Comparison({host: [0, *calls] for host, calls in whole.told.items()})
    cut_short = run_seed(3, Options(without=kind), comparison)
    assert comparison.differs and cut_short.virtual_s < 5 < whole.virtual_s


def test_a_run_that_leaves_nothing_out_is_told_the_same():
    whole = run_seed(3, Options(chaos_ms=5_000))
    comparison = Comparison(whole.told)
    again = run_seed(3, Options(chaos_ms=5_000), comparison)
    assert not comparison.differs
    assert (again.digest, again.virtual_s) == (whole.digest, whole.virtual_s)


def test_who_was_stopped_is_known_by_the_kind_that_did_it():
    report = run_seed(0, Options(only=("kill", "slow fabric")))
    assert report.fired == report.struck
    assert set(report.stopped) <= {"kill"}
    stopping = next(one for seed in range(20) if (one := run_seed(seed, Options(only=("kill",)))).fired)
    assert stopping.stopped["kill"] and all(name.startswith(("client", "node")) for name in stopping.stopped["kill"])


# -- which runs a seed gets ------------------------------------------------------------------------------------------


def pretend(campaign, worlds, workers=1):
    """Workers in turn; `worlds(run)` says what comes of a run. Returns what was run, by worker."""
    done = []
    asked = 0
    while asked < workers:
        for worker in range(workers):
            run = campaign.next_run(worker)
            if run is None:
                asked += 1
                continue
            asked = 0
            campaign.ran(worker, run, worlds(run))
            done.append((worker, run))
    return done


def quiet_world(run):
    report = Report(run.seed, digest=str(run.seed), fired=Counter({"kill": 2, "pause": 1}))
    report.stopped = {"kill": frozenset({"client-0"})}
    return Ran(report, differs=run.options.without == "kill")


def test_each_kind_that_struck_is_left_out_until_it_took_effect_often_enough():
    campaign = Campaign(range(10), Wishes(compare=True, enough=3))
    done = pretend(campaign, quiet_world)
    without = Counter(run.options.without for _, run in done)
    assert without == {"": 10, "kill": 3, "pause": 10}
    summary = campaign.summary
    assert summary.took_effect == {"kill": 3, "pause": 0} and summary.compared == {"kill": 3, "pause": 10}
    assert summary.seeds == 10 and summary.runs == 23 and summary.seeds_with["kill"] == 10
    ignored = {run.comparison.ignored for _, run in done if run.options.without == "kill"}
    assert ignored == {frozenset({"client-0"})}


def test_a_seed_is_repeated_by_another_worker():
    campaign = Campaign(range(8), Wishes(twice=True))
    by_seed = {}
    for worker, run in pretend(campaign, quiet_world, workers=3):
        by_seed.setdefault(run.seed, []).append(worker)
    assert sorted(by_seed) == list(range(8))
    assert all(len(workers) == 2 and len(set(workers)) == 2 for workers in by_seed.values())
    assert campaign.summary.repeated == 8 and not campaign.summary.unrepeatable


def test_two_digests_of_one_seed_are_noticed():
    def drifting(run):
        drifting.count += 1
        return Ran(Report(run.seed, digest=str(drifting.count if run.seed == 2 else 0)))

    drifting.count = 0
    campaign = Campaign(range(4), Wishes(twice=True))
    pretend(campaign, drifting, workers=2)
    assert campaign.summary.unrepeatable == [2]


def test_a_promise_that_breaks_where_a_kind_is_left_out_is_broken_all_the_same():
    def fragile(run):
        broken = ["P1 at 1 s: so"] if run.options.without == "pause" else []
        return Ran(Report(run.seed, fired=Counter({"pause": 1}), violations=broken))

    campaign = Campaign([7], Wishes(compare=True))
    pretend(campaign, fragile)
    ((report, options),) = campaign.summary.failures
    assert report.seed == 7 and options.without == "pause"


# -- processes -------------------------------------------------------------------------------------------------------

SHORT = Options(chaos_ms=1_000)


class Few:
    """A source of given runs."""

    def __init__(self, *runs):
        self.left = list(runs)
        self.results = []

    def next_run(self, worker):
        return self.left.pop() if self.left else None

    def ran(self, worker, run, result):
        self.results.append((run, result))


def test_runs_in_other_processes_come_to_the_same():
    source = Few(Run(1, SHORT), Run(2, SHORT), Run(3, SHORT))
    assert len(list(run_in_processes(source, 2))) == 3
    assert {run.seed: result.report.digest for run, result in source.results} == {
        seed: run_seed(seed, SHORT).digest for seed in (1, 2, 3)
    }


def test_every_worker_has_a_hash_seed_of_its_own(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    workers = [_Worker(0), _Worker(1)]
    try:
        for worker in workers:
            worker.send(Run(1, SHORT))
        seeds = set()
        for worker in workers:
            worker.receive(Run(1, SHORT))
            environment = Path(f"/proc/{worker._process.pid}/environ").read_bytes().split(b"\0")
            seeds |= {entry for entry in environment if entry.startswith(b"PYTHONHASHSEED=")}
        assert seeds == {b"PYTHONHASHSEED=1", b"PYTHONHASHSEED=2"}
    finally:
        for worker in workers:
            worker.end()


def test_a_worker_that_dies_is_a_failure_of_its_seed_and_the_others_go_on(capfd):
    source = Few(Run(1, SHORT), Run(41, "no options"), Run(2, SHORT))
    list(run_in_processes(source, 1))
    assert {run.seed: result.report.failed for run, result in source.results} == {1: False, 2: False, 41: True}
    assert "Traceback" in capfd.readouterr().err


# -- the command -----------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(sim, arguments, catch_exceptions=False)


def test_the_figures_of_a_campaign_go_into_a_file(tmp_path):
    file = tmp_path / "figures.json"
    done = run("--seeds", "3-6", "--chaos-s", "2", "--jobs", "1", "--compare", "--enough", "1", "--json", str(file))
    assert done.exit_code == 0, done.output
    record = json.loads(file.read_text())
    assert record["whole"] and record["seeds"] == 4 and record["runs"] >= 4 and record["failures"] == []
    assert set(record["faults"]) == set(KINDS)
    for figures in record["faults"].values():
        assert figures["took_effect"] <= figures["compared"] <= figures["seeds"] <= figures["found_a_victim"]
        assert figures["found_a_victim"] <= figures["strikes"]
    assert sum(figures["compared"] for figures in record["faults"].values()) == record["runs"] - 4


def test_an_interrupted_campaign_goes_on_from_its_figures(tmp_path):
    file = tmp_path / "figures.json"
    common = ("--chaos-s", "2", "--jobs", "1", "--compare", "--json", str(file), "--resume")
    assert run("--seeds", "0-2", *common).exit_code == 0
    first = json.loads(file.read_text())
    assert first["done"] == [0, 1, 2]
    assert run("--seeds", "0-4", *common).exit_code == 0
    both = json.loads(file.read_text())
    assert both["done"] == [0, 1, 2, 3, 4] and both["seeds"] == 5 and both["wall_s"] >= first["wall_s"]
    for figures, earlier in zip(both["faults"].values(), first["faults"].values(), strict=True):
        assert all(figures[name] >= earlier[name] for name in figures)
    whole = tmp_path / "whole.json"
    assert run("--seeds", "0-4", *common[:-3], "--json", str(whole)).exit_code == 0
    at_once = json.loads(whole.read_text())
    assert at_once["faults"] == both["faults"] and at_once["calls"] == both["calls"]


def test_what_failed_before_the_interruption_fails_the_whole(tmp_path):
    file = tmp_path / "figures.json"
    summary = Summary(failures=[(Report(7, violations=["P1 at 1 s: so"]), Options())])
    write_record(file, summary, Wishes(Options(chaos_ms=1_000)), 1.0, whole=False)
    done = run("--seeds", "1", "--chaos-s", "1", "--jobs", "1", "--json", str(file), "--resume")
    assert done.exit_code == 1 and "failed before: pykvpool sim --seed 7" in done.output
    assert json.loads(file.read_text())["failures"] == [
        {"replay": "pykvpool sim --seed 7", "violations": ["P1 at 1 s: so"]}
    ]


@pytest.mark.parametrize("runs", [1, 2, 6])
def test_what_an_interruption_left_to_be_compared_is_compared_when_it_goes_on(tmp_path, runs):
    file, wishes = tmp_path / "figures.json", Wishes(Options(chaos_ms=2_000), compare=True, enough=3)
    at_once = campaign_of(3, wishes)
    first = campaign_of(3, wishes, runs=runs)
    owed = sum(len(seed.without) for seed in first.owed.values())
    assert first.runs == runs and owed, "it was interrupted with comparisons to make"
    write_record(file, first, wishes, 1.0, whole=False)
    again = campaign_of(3, wishes, read_record(file, wishes)[0])
    assert not again.owed and not at_once.owed
    for figures in ("seeds", "struck", "fired", "compared", "took_effect", "calls", "callbacks"):
        assert getattr(again, figures) == getattr(at_once, figures), figures


def campaign_of(seeds, wishes, summary=None, runs=None):
    """What a campaign of the first seeds finds; in `runs` runs, or until it has ended."""
    campaign = Campaign(range(seeds), wishes, summary)
    for _ in itertools.islice(campaign.run(1), runs):
        pass
    return campaign.summary


def test_seeds_that_an_interruption_left_to_be_repeated_are_repeated_when_it_goes_on():
    wishes = Wishes(SHORT, twice=True)
    first = Campaign([1], wishes)
    took = first.next_run(0)
    first.ran(0, took, Ran(Report(1, digest="a")))
    assert first.summary.owed[1].again
    again = Campaign([1, 2], wishes, first.summary)
    recalled = again.next_run(0)
    assert recalled.seed == 1
    again.ran(0, recalled, Ran(Report(1, digest="a")))
    assert again.next_run(0).seed == 2, "this worker must not repeat what it ran"
    repeat = again.next_run(1)
    assert repeat.seed == 1
    again.ran(1, repeat, Ran(Report(1, digest="b")))
    assert again.summary.unrepeatable == [1] and again.summary.seeds == 1 and 1 not in again.summary.owed


def test_a_seed_that_failed_only_when_it_was_recalled_is_a_failure_and_compared_with_nothing():
    wishes = Wishes(SHORT, compare=True)
    campaign = Campaign([], wishes, Summary(seeds=1, done={1}, owed={1: Owed(["kill", "pause"])}))
    run = campaign.next_run(0)
    campaign.ran(0, run, Ran(Report(1, violations=["bug at ? s: the simulator failed"])))
    assert [report.seed for report, _ in campaign.summary.failures] == [1]
    assert campaign.next_run(0) is None and not campaign.summary.owed


@pytest.mark.parametrize("other", [["--faults", "kill"], ["--twice"], ["--compare"], ["--everywhere"], ["--off", "P2"]])
def test_figures_of_other_options_are_not_added_to(tmp_path, other):
    file = tmp_path / "figures.json"
    write_record(file, Summary(), Wishes(Options(chaos_ms=1_000)), 1.0, whole=False)
    before = file.read_text()
    done = run("--seeds", "1", "--chaos-s", "1", "--json", str(file), "--resume", *other)
    assert done.exit_code == 2 and "it has the figures of `pykvpool sim --chaos-s 1`" in " ".join(done.output.split())
    assert file.read_text() == before


@pytest.mark.parametrize("text", ["", "[]", '{"seeds": 3}'])
def test_a_file_that_is_no_record_is_refused(tmp_path, text):
    file = tmp_path / "figures.json"
    file.write_text(text)
    done = run("--seeds", "1", "--json", str(file), "--resume")
    assert done.exit_code == 2 and "cannot go on from" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--resume"], "--json"),
        (["--seeds", "9-3"], "no seed"),
        (["--seeds", "0"], "no seed"),
        (["--seeds", "ten"], "2000-2999"),
        (["--compare", "--without", "kill"], "--without"),
    ],
)
def test_wrong_ranges_and_contradictions_are_refused(arguments, says):
    done = run(*arguments)
    assert done.exit_code == 2 and says in done.output


def test_the_summary_names_the_kinds_that_have_shown_too_little(capsys):
    from rich.console import Console

    summary = Summary()
    summary.took_effect.update({kind: 100 for kind in KINDS if kind != "pause"})
    console = Console(width=200)
    console.print(summary_page(summary, 1.0, compare=True))
    assert "fewer than 100 seeds: pause (0)" in capsys.readouterr().out
    summary.took_effect["pause"] = 120
    console.print(summary_page(summary, 1.0, compare=True))
    assert "every kind of fault took effect in 100 seeds or more" in capsys.readouterr().out


def test_progress_says_how_far_it_is_and_how_long_it_takes(monkeypatch, capsys):
    from rich.console import Console

    now_s = [0.0]
    monkeypatch.setattr("pykvpool_sim.command.progress.time.monotonic", lambda: now_s[0])
    summary = Summary(seeds=25)
    with ProgressLine(Console(width=200), 100) as progress:
        now_s[0] = 10.0
        assert not progress.update(summary)
        now_s[0] = 60.0
        assert progress.update(summary)
    assert capsys.readouterr().out == "25 of 100 seeds, 0 failed, 1 min, about 3 to go\n"
