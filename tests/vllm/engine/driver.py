"""An engine in a process of its own, as the tests drive it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: Importing torch and vLLM, building the model and the cache: 10 s alone, minutes with several ranks on a busy machine.
START_S = 600.0
#: One command: some dozens of engine steps.
ANSWER_S = 180.0
CONNECTOR = "PyKVPoolStoreConnector"
MODULE = "pykvpool_connector.vllm.connector"
ROOT = Path(__file__).parents[3]


class EngineError(Exception):
    """The engine's process answered with an error, or ended."""


def transfer_config(*, by_path: bool = False, role: str = "kv_both", **extra: Any) -> dict[str, Any]:
    """`--kv-transfer-config` for our connector, registered by name or by module path."""
    config: dict[str, Any] = {
        "kv_connector": CONNECTOR, "kv_role": role, "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }  # fmt: skip
    if by_path:
        config["kv_connector_module_path"] = MODULE
    return config


def environment(**more: str) -> dict[str, str]:
    """For an engine's process: no network, one hash seed, everything of the engine in one process."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "connector"), str(ROOT / "sim")])
    return os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # One thread of numbers: two that wait for each other at every layer crawl on a machine with other work.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": path,
    } | more  # fmt: skip


class Engine:
    """One real engine. Calls are methods of `serve.Commands`: ``engine.generate([tokens], max_tokens=4)``."""

    def __init__(
        self,
        model: Path,
        log: Path,
        *,
        transfer: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.log = log
        settings: dict[str, Any] = {
            "model": str(model), "dtype": "float32", "enforce_eager": True, "block_size": 32, "max_model_len": 2048,
            "kv_cache_memory_bytes": 16 << 20, "max_num_seqs": 8, "seed": 0,
        } | options  # fmt: skip
        if transfer is not None:
            settings["kv_transfer_config"] = transfer
        read, write = os.pipe()
        self._answers = os.fdopen(read, "rb", buffering=0)
        self._pending = b""
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("serve.py")), str(write)],
                stdin=subprocess.PIPE, stdout=stderr, stderr=stderr, pass_fds=(write,), env=environment(**(env or {})),
                text=True, start_new_session=True,
            )  # fmt: skip
        os.close(write)
        self._send(settings)

    def ready(self) -> Engine:
        """Wait until it is built. Engines may be started side by side before."""
        self._answer(START_S)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._send({"call": name, "args": args, "kwargs": kwargs})
            return self._answer(ANSWER_S)

        return call

    def hits(self) -> int:
        """`external_prefix_cache_hits` so far, in tokens."""
        return int(self.metrics().get("vllm:external_prefix_cache_hits", 0))

    def kill(self) -> None:
        """As a crash would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self._answers.close()

    def close(self) -> None:
        """End it in order; raises `EngineError` where it does not end well."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
                raise EngineError(f"the engine does not end; its log ends with:\n{self.tail()}") from None
        self._answers.close()

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Engine:
        return self.ready()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

    def _send(self, value: object) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(value) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise EngineError(f"the engine is gone; its log ends with:\n{self.tail()}") from None

    def _answer(self, limit_s: float) -> Any:
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                raise EngineError(f"no answer in {limit_s:.0f} s; its log ends with:\n{self.tail()}")
            piece = self._answers.read(1 << 16)
            if not piece:
                raise EngineError(f"the engine has ended; its log ends with:\n{self.tail()}")
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{answer['error']}\n{answer.get('trace', '')}")
        return answer["result"]
