"""The repository keeps its own house: nothing of a developer's machine, no dead references, one version."""

import ast
import os
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import pykvpool

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Top directories of machines that this was developed on: a path below one works nowhere else. (Written apart, so that
#: this file does not name one.)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:" + "|".join(("work", "farm", "root")) + r")/[\w.-]")


def tracked() -> list[Path]:
    """Files of the repository; skips where this is no git checkout (an unpacked sdist)."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if done.returncode:
        pytest.skip("not a git checkout")
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def text_of(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return None


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in tracked()
        for number, line in enumerate((text_of(path) or "").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found, "\n".join(found)


def test_machine_paths_are_recognised() -> None:
    """The check above can fail."""
    root = "/".join(("", "root", ".venv"))
    assert MACHINE_PATH.search(f"cd {root}")
    assert not MACHINE_PATH.search("docs/root/x ./root/x http://host.root/x")


def test_nothing_that_can_be_made_again_is_in_the_repository() -> None:
    made = re.compile(
        r"(^|/)(__pycache__|\.venv|\.mypy_cache|\.ruff_cache|\.hypothesis|dist|build|[^/]*\.egg-info)/|\.pyc$"
    )
    assert not [path for path in tracked() if made.search(str(path.relative_to(ROOT)))]


def test_there_is_one_version() -> None:
    assert PROJECT["version"] == pykvpool.__version__


def test_supported_pythons_are_stated_alike() -> None:
    versions = [each.rsplit(" ", 1)[1] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert versions
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports test files of directories without a package by their bare names: two alike cannot be collected."""
    names = Counter(path.name for path in ROOT.glob("tests/**/test_*.py") if not (path.parent / "__init__.py").exists())
    assert not [name for name, count in names.items() if count > 1]


def test_scripts_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("top", ["pykvpool", "connector", "sim"])
def test_every_module_says_what_it_is(top: str) -> None:
    """Its first paragraph is its theory of operation."""
    files = sorted((ROOT / top).rglob("*.py"))
    assert files
    assert not [str(path.relative_to(ROOT)) for path in files if not ast.get_docstring(ast.parse(path.read_text()))]


def markdown() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md"]


def test_links_of_the_docs_lead_somewhere() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in markdown()
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
        if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists()
    ]
    assert not dead, "\n".join(dead)


@pytest.mark.parametrize("page", ["architecture.md", "rdma.md"])
def test_every_file_that_a_page_about_the_code_names_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    named = set(re.findall(r"`([\w.-]+(?:/[\w.-]+)*/?)`", text))
    paths = {name for name in named if "/" in name or name.endswith((".py", ".md", ".toml", ".json"))}
    assert paths
    # A path stands from the root, or from the package that most of the page is about.
    places = (ROOT, ROOT / "pykvpool", ROOT / "docs")
    missing = sorted(name for name in paths if not any((place / name).exists() for place in places))
    assert not missing, ", ".join(missing)
