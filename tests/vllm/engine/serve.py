"""The engine's process: reads one JSON command a line, answers with one JSON line.

Runs apart from the tests because an engine cannot be built twice in one process, and because a second engine must
really be a second process. Commands are calls of `Commands`' methods by name. What vLLM and torch print goes to stderr:
the answers have a file descriptor of their own.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

#: Longest time in which whatever a connector has under way must come to an end.
SETTLE_S = 60.0


class Commands:
    """What a test may ask of an engine."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        if options.get("tensor_parallel_size", 1) > 1:
            from tests.vllm.engine.patient import sleep_while_waiting

            sleep_while_waiting()
        transfer = options.pop("kv_transfer_config", None)
        if transfer is not None:
            options["kv_transfer_config"] = KVTransferConfig(**transfer)
        self.llm = LLM(disable_log_stats=False, **options)
        self.engine = self.llm.llm_engine
        self._done: dict[str, Any] = {}

    @property
    def core(self) -> Any:
        """The engine core, where it lives in this process."""
        return self.engine.engine_core.engine_core

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    def generate(self, prompts: list[list[int]], max_tokens: int = 8, settle: bool = True) -> list[dict[str, Any]]:
        """Greedy tokens and their logprobs (exact, as hexadecimal), and how many prompt tokens were not computed."""
        names = [self.submit(each, max_tokens) for each in prompts]
        while any(name not in self._done for name in names):
            self.step()
        if settle:
            self.settle()
        return [self._done.pop(name) for name in names]

    def submit(self, prompt: list[int], max_tokens: int = 8, name: str = "") -> str:
        """Hand in a request without running a step."""
        from vllm import SamplingParams

        name = name or f"request-{time.monotonic_ns()}"
        params = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=0, ignore_eos=True)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, params)
        return name

    def step(self, times: int = 1) -> list[str]:
        """Run engine steps; names of all requests that have finished and were not collected."""
        for _ in range(times):
            for output in self.engine.step():
                if output.finished:
                    self._done[output.request_id] = _plain(output)
        return sorted(self._done)

    def collect(self, name: str) -> dict[str, Any] | None:
        return self._done.pop(name, None)

    def abort(self, names: list[str]) -> None:
        self.engine.abort_request(names, internal=False)

    def run_until_done(self, names: list[str], limit_s: float = SETTLE_S) -> list[dict[str, Any]]:
        deadline = time.monotonic() + limit_s
        while any(name not in self._done for name in names):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{[name for name in names if name not in self._done]} have not finished")
            self.step()
        return [self._done.pop(name) for name in names]

    def settle(self, limit_s: float = SETTLE_S) -> None:
        """Step until neither requests nor a connector's work are left (in-process engines only)."""
        if not hasattr(self.engine.engine_core, "engine_core"):
            return
        deadline = time.monotonic() + limit_s
        while self.scheduler.has_requests():
            if time.monotonic() > deadline:
                raise TimeoutError("the engine still has work")
            self.step()

    def reset_prefix_cache(self, connector: bool = False) -> bool:
        """Forget the engine's own cache (and the pool's part, with `connector`)."""
        return bool(self.llm.reset_prefix_cache(reset_connector=connector))

    def metrics(self, prefix: str = "vllm:") -> dict[str, float]:
        """Counters and gauges, summed over labels; with several values per label set, one entry per set as well."""
        values: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            value = getattr(metric, "value", None)
            if value is None or not metric.name.startswith(prefix):
                continue
            values[metric.name] = values.get(metric.name, 0) + value
            labels = {key: text for key, text in metric.labels.items() if key not in ("engine", "model_name")}
            if labels:
                values[f"{metric.name}{json.dumps(labels, sort_keys=True)}"] = value
        return values

    def leftovers(self) -> dict[str, int]:
        """What must be nothing once everything has finished: blocks still referenced, requests still known."""
        pool = self.scheduler.kv_cache_manager.block_pool
        held = sum(block.ref_cnt > 0 and not block.is_null for block in pool.blocks)
        return {"blocks": held, "requests": len(self.scheduler.requests)}

    def run(self, code: str) -> Any:
        """Run statements with `engine`, `scheduler` and `llm` in scope; the value of `result` is the answer."""
        names: dict[str, Any] = {"commands": self, "llm": self.llm, "engine": self.engine}
        if hasattr(self.engine.engine_core, "engine_core"):
            names["scheduler"] = self.scheduler
        exec(code, names)
        return names.get("result")


def _plain(output: Any) -> dict[str, Any]:
    [completion] = output.outputs
    chosen = [
        step[token].logprob.hex() for step, token in zip(completion.logprobs or [], completion.token_ids, strict=False)
    ]
    return {
        "tokens": list(completion.token_ids), "logprobs": chosen, "cached": output.num_cached_tokens,
        "reason": completion.finish_reason,
    }  # fmt: skip


def main() -> None:
    """``python serve.py ANSWERS``: `ANSWERS` is the number of the file descriptor for answers; options come first."""
    with os.fdopen(int(sys.argv[1]), "w") as answers:

        def answer(value: Any) -> None:
            answers.write(json.dumps(value) + "\n")
            answers.flush()

        try:
            commands = Commands(json.loads(sys.stdin.readline()))
        except BaseException as error:
            answer({"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})
            raise
        answer({"result": "ready"})
        for line in sys.stdin:
            call = json.loads(line)
            try:
                answer({"result": getattr(commands, call["call"])(*call["args"], **call["kwargs"])})
            except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
                answer({"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})
        commands.llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
