"""Real engines and a real pool, each in processes of their own. Runs where vLLM is: `make test-vllm`."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from tests.vllm.engine.driver import ROOT, Engine, environment, transfer_config
    from tests.vllm.engine.models import make_model

    #: Kept between runs: making one takes seconds.
    MODELS = Path(os.environ.get("TINY_MODELS", ROOT / ".venv-vllm" / "models"))

#: Of a pool's node unless a test says otherwise; the tiny models' blocks have some tens of KiB.
NODE_SIZE = "64MiB"


@pytest.fixture(autouse=True)
def found_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nodes and engines of this test alone find each other: whatever else this user runs on this host."""
    compiled = Path(tempfile.gettempdir()) / f"torchinductor-tests-{os.getuid()}"  # once, not for every engine
    with tempfile.TemporaryDirectory(prefix="pk-") as folder:  # short, for sockets lie in it
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled))
        yield


class Pool:
    """A master and nodes as processes; the address of the master is for an engine's configuration."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.address = ""

    def start_master(self, *arguments: str, listen: str = "tcp://127.0.0.1:0") -> dict[str, Any]:
        """What it announced; its address stays the pool's."""
        announced = self._start("master", "master", "--listen", listen, *arguments)
        [self.address] = announced["addresses"]
        return announced

    def start_node(self, name: str = "n1", *arguments: str, size: str = NODE_SIZE) -> dict[str, Any]:
        return self._start(name, "node", "--name", name, "--master", self.address, "--segment-size", size, *arguments)

    def _start(self, name: str, *arguments: str) -> dict[str, Any]:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pykvpool", *arguments, "--supervised"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(),
            )  # fmt: skip
        self._stack.callback(self._end, process)
        self.processes[name] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"{name} did not start:\n{(self._folder / f'{name}.log').read_text()}")
        return json.loads(line)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes.pop(name).wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def run(self, *arguments: str) -> str:
        """A command of the pool: its output."""
        done = subprocess.run(
            [sys.executable, "-m", "pykvpool", *arguments, "--master", self.address],
            capture_output=True, text=True, env=environment(), timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def keys(self) -> int:
        """How many objects it holds."""
        return int(json.loads(self.run("status", "--json"))["objects"])

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """A master and one node, `n1`, over loopback."""
    with contextlib.ExitStack() as stack:
        pool = Pool(tmp_path, stack)
        pool.start_master()
        pool.start_node()
        yield pool


@pytest.fixture
def empty_pool(tmp_path: Path) -> Iterator[Pool]:
    """For tests that start its processes themselves."""
    with contextlib.ExitStack() as stack:
        yield Pool(tmp_path, stack)


@pytest.fixture
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Engine]]:
    """``engine(pool, model="llama", extra={...}, **options)`` starts an engine; call `ready` on it, or use `with`."""
    engines: list[Engine] = []

    def start(
        pool: Pool | None = None,
        *,
        model: str = "llama",
        extra: dict[str, Any] | None = None,
        transfer: dict[str, Any] | None = None,
        **options: Any,
    ) -> Engine:
        if transfer is None and (pool is not None or extra is not None):
            where = {} if pool is None else {"master": pool.address}
            transfer = transfer_config(**(where | (extra or {})))
        log = tmp_path / f"engine-{len(engines)}.log"
        engines.append(Engine(make_model(model, MODELS / model), log, transfer=transfer, **options))
        return engines[-1]

    yield start
    report = getattr(request.node, "failed_report", None)
    for number, each in enumerate(engines):
        if report is not None:
            print(f"--- the log of engine {number} ends with:\n{each.tail(60)}")
        each.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed and report.when == "call":
        item.failed_report = report
    return report


@pytest.fixture(scope="session")
def plain_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Engine]]:
    """Engines without any connector, kept for the whole session: what every output is compared with."""
    engines: dict[str, Engine] = {}

    def plain(model: str = "llama", **options: Any) -> Engine:
        name = json.dumps([model, options], sort_keys=True)
        if name not in engines:
            log = tmp_path_factory.mktemp("plain") / "engine.log"
            engines[name] = Engine(make_model(model, MODELS / model), log, **options).ready()
        return engines[name]

    yield plain
    for each in engines.values():
        each.kill()


@pytest.fixture
def expected(plain_engines: Callable[..., Engine]) -> Callable[..., list[tuple[list[int], list[str]]]]:
    """``expected(prompts, max_tokens=8, model="llama")``: tokens and logprobs without a connector or a cache hit."""

    def compute(prompts: list[list[int]], max_tokens: int = 8, model: str = "llama", **options: Any):
        plain = plain_engines(model, **options)
        outputs = []
        for each in prompts:  # one at a time: nothing of one batch's shape gets into the numbers
            assert plain.reset_prefix_cache()
            outputs += plain.generate([each], max_tokens)
        return answers(outputs)

    return compute


def answers(outputs: list[dict[str, Any]]) -> list[tuple[list[int], list[str]]]:
    """Tokens and logprobs, for comparing."""
    return [(each["tokens"], each["logprobs"]) for each in outputs]
