"""The table of mutations is kept: every patch fits the code, every check exists, no survivor is passed over."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutations.mutation import Mutation, Selection, StalePatch, Verdict, selections, without
from tests.mutations.report import BEGIN, END, page, simulation_page, text
from tests.mutations.run import Result
from tests.mutations.scratch import ROOT
from tests.mutations.simulated import NOT_RUN, SIMULATED, UNSEEN, Simulation, failed_seed
from tests.mutations.table import MUTATIONS

names = [each.name for each in MUTATIONS]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=names)
def test_every_patch_fits_the_code_and_leaves_it_python(mutation: Mutation) -> None:
    broken = mutation.applied_to((ROOT / mutation.file).read_text("utf-8"))
    ast.parse(broken)


def test_every_row_has_a_name_of_its_own_and_a_check_that_exists() -> None:
    assert len(MUTATIONS) >= 24
    assert not [name for name, count in Counter(names).items() if count > 1]
    for each in MUTATIONS:
        assert each.rule and each.checks, each.name
        for check in each.checks:
            if isinstance(check, Selection):  # else seeds
                assert (ROOT / check.where.split("::")[0]).exists(), f"{each.name}: {check.where}"


def example(**changes: object) -> Mutation:
    fields = {"name": "n", "rule": "r", "file": "a.py", "old": "good", "new": "bad", "checks": selections("a", "b")}
    return Mutation(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_patch_changes_the_copy_and_a_stale_one_says_which_row_to_write_anew(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("is_good = True\n")
    example().apply(tmp_path)
    assert (tmp_path / "a.py").read_text() == "is_bad = True\n"
    with pytest.raises(StalePatch, match="mutation n: its old text occurs 0 times"):
        example().apply(tmp_path)
    with pytest.raises(StalePatch, match=r"no b\.py any more"):
        example(file="b.py").apply(tmp_path)
    with pytest.raises(StalePatch, match="occurs 2 times"):
        example().applied_to("good and good")


FAILED = "..F\nFAILED tests/a.py::test_it - assert 1 == 2\n1 failed in 0.1s\n"


def test_only_a_test_that_failed_is_a_finding() -> None:
    check = Selection("tests/a.py")
    assert check.verdict(1, FAILED) == Verdict(True, "tests/a.py::test_it")
    assert check.verdict(0, "1 passed") == Verdict(False)
    for code in (2, 3, 4, 5, -9):
        assert check.verdict(code, "boom") == Verdict(False, trouble="boom")


def test_a_check_that_is_switched_off_finds_nothing_and_the_report_says_so() -> None:
    (row,) = without([example()], "tests/a")
    assert [check.label for check in row.checks] == ["tests/b"]
    (row,) = without([row], "tests/b")
    survivor, found = Result(row, Verdict(False), 0.0), Result(example(), Verdict(True, "tests/a.py::test_it"), 1.0)
    assert "SURVIVED: no check looks for it" in text([found, survivor])
    assert text([found, survivor]).endswith("2 mutations, 1 found, 1 survived")
    assert "| n | r | `a.py` | `a.py::test_it` | 1.0 |" in page([found], "", ["n"])


def test_a_run_of_some_rows_leaves_the_others_of_a_page_as_they_are() -> None:
    one, two = (
        Result(example(name="one"), Verdict(True, "t"), 1.0),
        Result(example(name="two"), Verdict(True, "t"), 2.0),
    )
    whole = page([one, two], "", ["one", "two", "three"])
    again = page([Result(example(name="two"), Verdict(True, "u"), 3.0)], whole, ["one", "two", "three"])
    assert again == whole.replace("| `t` | 2.0 |", "| `u` | 3.0 |") and "| one |" in again
    assert "| two |" not in page([], whole, ["one"]), "a mutation that is gone goes"


SAID = """1 seeds
seed 41 breaks 2 promise(s):
  P2 at 18.803386 s: a write of put 7 | by client-0 landed in free space
  P3 at 18.9 s: other
the schedule (...):
"""


def test_the_simulator_finds_what_breaks_a_promise_and_says_which_seed() -> None:
    check = Simulation(40, faults=("slow fabric", "kill"))
    assert check.label == "sim --seeds 40 --faults 'slow fabric,kill'"
    assert check.command("python")[-4:] == ["--no-shrink", "--first-failure", "--jobs", "1"]
    verdict = check.verdict(1, SAID)
    assert verdict == Verdict(True, "seed 41: P2: a write of put 7 | by client-0 landed in free space")
    assert failed_seed(verdict) == 41
    assert check.verdict(0, "all well") == Verdict(False)
    for code, output in ((1, "a traceback"), (2, "no such option"), (-9, "")):
        assert check.verdict(code, output).trouble and not check.verdict(code, output).found
    assert Simulation(1, 41).arguments == ["--seed", "41"] and Simulation(5, 10).arguments == ["--seeds", "10-14"]
    assert check.without_promises("P2,P5").label == f"{check.label} --off P2,P5"


def test_a_mutation_that_the_simulator_has_to_find_survives_where_it_does_not() -> None:
    row = example(simulation=Simulation())
    found, missed = Verdict(True, "tests/a.py::test_it"), Verdict(False)
    both = Result(row, found, 1.0, Verdict(True, "seed 1: P2: so"), 2.0)
    assert both.found and both.words == "found by tests/a.py::test_it; the simulator: seed 1: P2: so"
    assert not Result(row, found, 1.0, missed, 2.0).found
    assert not Result(row, missed, 1.0, Verdict(True, "seed 1: P2: so"), 2.0).found
    alone = Result(example(checks=(), simulation=Simulation()), missed, 0.0, Verdict(True, "seed 1: P2: so"), 2.0)
    assert alone.found
    assert without([row], "sim --seeds")[0].simulation is None


def test_the_simulators_table_stands_between_its_marks() -> None:
    empty = f"before\n{BEGIN}\n{END}after\n"
    result = Result(example(simulation=Simulation()), Verdict(False), 0.0, Verdict(True, "seed 1: P2: a|b"), 2.0)
    whole = simulation_page([result], empty, ["n"])
    assert "1 of 1 mutations were found." in whole and "| n | r | `sim --seeds 40` | 2.0 | seed 1: P2: a\\|b |" in whole
    assert whole.startswith("before\n") and whole.endswith("after\n")
    assert simulation_page([], whole, ["n"]) == whole
    with pytest.raises(ValueError, match="no place"):
        simulation_page([], "nothing", [])


def test_what_is_asked_of_the_simulator_is_a_mutation_and_what_is_not_has_a_reason() -> None:
    known = set(names)
    assert set(SIMULATED) <= known and set(UNSEEN) <= known and not set(SIMULATED) & set(UNSEEN)
    assert len(SIMULATED) >= 24
    nothing = [
        each.name
        for each in MUTATIONS
        if each.simulation is None and each.name not in UNSEEN and not each.file.startswith(tuple(NOT_RUN))
    ]
    assert not nothing, "the simulator runs their files, and it is not said whether it finds them"
