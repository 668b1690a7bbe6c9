"""Scratch copies of the repository: one healthy, and one for each mutation, made from the healthy one.

Only what the tests need is copied. Bytecode goes along (copying keeps the times that it is checked by), so that a copy
does not compile the whole pool again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What a test run looks at, from the root of the repository.
NEEDED = ("pykvpool", "connector", "sim", "tests", "examples", "docs", "pyproject.toml", "README.md")


def copy_repository(target: Path) -> Path:
    """A healthy copy of the work tree at `target`."""
    target.mkdir(parents=True)
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy2(source, target / name)
    return target


def copy_of(healthy: Path, target: Path) -> Path:
    """A copy of a copy, bytecode included."""
    shutil.copytree(healthy, target, ignore=shutil.ignore_patterns(".hypothesis", ".pytest_cache"))
    return target


def environment(root: Path) -> dict[str, str]:
    """In which the copy at `root` is what Python imports, whatever is installed."""
    paths = [str(root), str(root / "connector"), str(root / "sim")]
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths)}
