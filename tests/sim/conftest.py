"""Runs the swarm of seeds beside the other tests: it computes for minutes and needs nothing of them.

The processes start when the tests have been collected (and the swarm's is among them), and the test waits for their
end. So both cores work while the rest of the suite, one process, uses one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Seeds that run twice each. `pykvpool sim` runs thousands.
SEEDS = int(os.environ.get("PYKVPOOL_SIM_SEEDS", "200"))
#: The simulator's command, which ends when the tests are killed, its workers with it.
COMMAND = """
import ctypes, runpy, signal
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
runpy.run_module("pykvpool_sim", run_name="__main__", alter_sys=True)
"""
TEST = "test_no_promise_breaks_and_every_run_repeats_itself_in_another_process_with_other_hashes"


@dataclass(frozen=True)
class Swarm:
    """A run of the simulator's command."""

    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def start(cls) -> Swarm:
        folder = tempfile.TemporaryDirectory(prefix="swarm-")
        command = [sys.executable, "-c", COMMAND, "--seeds", str(SEEDS), "--twice", "--no-shrink"]
        with (Path(folder.name) / "output").open("wb") as output:
            process = subprocess.Popen(
                [*command, "--json", str(Path(folder.name) / "figures.json")],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT, start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "sim")])},
            )  # fmt: skip
        return cls(process, folder)

    def result(self) -> tuple[int, str, dict[str, object]]:
        """Its exit code, what it printed, and its figures."""
        code = self.process.wait()
        figures = Path(self.folder.name) / "figures.json"
        text = (Path(self.folder.name) / "output").read_text()
        return code, text, json.loads(figures.read_text()) if figures.exists() else {}

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.folder.cleanup()


_running = pytest.StashKey[Swarm]()


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.option.collectonly and any(item.name == TEST for item in session.items):
        session.config.stash[_running] = Swarm.start()


def pytest_sessionfinish(session: pytest.Session) -> None:
    swarm = session.config.stash.get(_running, None)
    if swarm is not None:
        swarm.end()


@pytest.fixture
def swarm(request: pytest.FixtureRequest) -> Iterator[Swarm]:
    """The run that was started before the first test."""
    yield request.config.stash[_running]
