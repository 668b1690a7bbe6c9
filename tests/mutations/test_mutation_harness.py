"""The table of mutations is kept: every patch fits the code, every check exists, no survivor is passed over."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutations.mutation import Mutation, Selection, StalePatch, Verdict, selections, without
from tests.mutations.report import page, text
from tests.mutations.run import Result
from tests.mutations.scratch import ROOT
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
    assert "| n | r | `a.py` | `a.py::test_it` | 1.0 |" in page([found])
