"""What importing the pool costs, and who may import whom."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Optional parts, and libraries that only some commands need.
HEAVY = ("torch", "vllm", "pyverbs", "ibverbs", "cuda", "numpy", "uvicorn", "starlette", "httpx", "rich", "uvloop")


def run(program: str) -> subprocess.CompletedProcess[str]:
    path = [str(ROOT), str(ROOT / "connector"), str(ROOT / "sim"), *sys.path]
    return subprocess.run(
        [sys.executable, "-c", program, *path], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("module", ["pykvpool", "pykvpool.hashing", "pykvpool.config", "pykvpool.core"])
def test_importing_it_pulls_in_nothing_heavy(module: str) -> None:
    program = f"import sys; sys.path[:0] = sys.argv[1:]; import {module}; print(*sys.modules)"
    done = run(program)
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "pykvpool" in loaded
    assert not loaded.intersection(HEAVY)


def test_the_layers_hold() -> None:
    """What `make layers` checks: design rules as import-linter contracts in pyproject.toml."""
    pytest.importorskip("importlinter")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [name.strip() for layer in contracts[0]["layers"] for name in layer.split("|")]
    absent = [name for name in layers if not has_module(name)]
    if absent:
        pytest.skip(f"not there yet: {', '.join(absent)}")
    done = run(
        "import sys; sys.path[:0] = sys.argv[1:]; del sys.argv[1:]\n"
        "from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Contracts: {len(contracts)} kept, 0 broken." in done.stdout


def has_module(name: str) -> bool:
    package, _, rest = name.partition(".")
    if package in ("pykvpool_connector", "pykvpool_sim"):
        return (ROOT / package.removeprefix("pykvpool_") / package).is_dir()
    return importlib.util.find_spec(package) is not None and (
        (ROOT / package / rest).is_dir() or (ROOT / package / f"{rest}.py").is_file()
    )
