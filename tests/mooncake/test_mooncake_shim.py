"""`mooncake.store` becomes ours: by an import, and by a command in front of a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pykvpool.cli import main as cli_main
from pykvpool_connector.mooncake import command
from tests.mooncake.running import ROOT, SHIM

PATHS = os.pathsep.join([str(ROOT), str(ROOT / "connector")])


def python(code: str, *arguments: str, shim: bool = False) -> subprocess.CompletedProcess[str]:
    run = [*SHIM, "python", "-c", code] if shim else [sys.executable, "-c", code]
    return subprocess.run(
        [*run, *arguments], env={**os.environ, "PYTHONPATH": PATHS}, capture_output=True, text=True, timeout=60
    )


def test_after_the_import_mooncake_is_ours():
    done = python(
        "import pykvpool_connector.mooncake.install\n"
        "from mooncake.store import MooncakeDistributedStore, ReplicateConfig, ReplicaStatus, COMPLETE\n"
        "from mooncake.async_store import MooncakeDistributedStoreAsync\n"
        "from mooncake.mooncake_config import MooncakeConfig\n"
        "import mooncake, mooncake.store\n"
        "print(MooncakeDistributedStore.__module__, mooncake.store.ReplicateConfig is ReplicateConfig, COMPLETE.name)\n"
        "assert hasattr(ReplicateConfig(), 'group_ids')\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "pykvpool_connector.mooncake.store True COMPLETE\n"


def test_importing_it_twice_and_late_is_fine():
    done = python(
        "import pykvpool_connector.mooncake.install as first\n"
        "import mooncake.store as before\n"
        "first.install()\n"
        "import mooncake.store as after\n"
        "print(before is after)\n"
    )
    assert done.stdout == "True\n", done.stderr


def test_other_modules_of_an_installed_mooncake_stay(tmp_path):
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "store.py").write_text("raise RuntimeError('the real store')")
    (package / "engine.py").write_text("name = 'the real engine'")
    code = (
        "import mooncake.engine, mooncake.store; print(mooncake.engine.name, mooncake.store.MooncakeDistributedStore)"
    )
    for shim, prefix in ((False, "import pykvpool_connector.mooncake.install\n"), (True, "")):
        done = python(f"import sys; sys.path.append({str(tmp_path)!r})\n{prefix}{code}", shim=shim)
        assert done.stdout.startswith("the real engine <class 'pykvpool_connector"), done.stderr


def test_the_command_runs_a_program_with_its_arguments_and_exit_code():
    done = python("import sys, mooncake.store; print(sys.argv[1:]); sys.exit(7)", "--flag", "x", shim=True)
    assert done.returncode == 7, done.stderr
    assert done.stdout == "['--flag', 'x']\n"


def test_the_command_reaches_what_the_program_starts():
    inner = "import mooncake.store as s; print(s.MooncakeDistributedStore.__module__)"
    done = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])", shim=True)
    assert done.stdout == "pykvpool_connector.mooncake.store\n", done.stderr


def test_a_program_that_is_not_there_is_an_error_of_one_line(monkeypatch):
    monkeypatch.setitem(
        cli_main.COMMANDS, "mooncake-shim", cli_main.Lazy("pykvpool_connector.mooncake.command", "mooncake_shim", "")
    )
    result = CliRunner().invoke(cli_main.cli, ["mooncake-shim", "--", "no-such-program-at-all"])
    assert result.exit_code == 1
    assert result.output == "pykvpool: InvalidArgument: there is no program 'no-such-program-at-all'\n"


def test_the_environment_keeps_what_was_there():
    made = command.shim_environment({"PYTHONPATH": "/own/modules", "PATH": "/own/bin", "OTHER": "1"})
    paths = made["PYTHONPATH"].split(os.pathsep)
    assert Path(paths[0]).name == "shim" and paths[-1] == "/own/modules"
    assert made["PATH"].endswith(os.pathsep + "/own/bin")
    assert made["OTHER"] == "1"


@pytest.mark.parametrize("name", ["store", "async_store", "mooncake_config"])
def test_the_directory_of_the_command_and_the_import_replace_the_same_modules(name):
    from pykvpool_connector.mooncake.install import REPLACED

    assert (command.SHIM / "mooncake" / f"{name}.py").exists()
    assert f"mooncake.{name}" in REPLACED
