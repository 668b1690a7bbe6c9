"""vLLM's OpenAI server as people run it, every part a process of its own, asked by a real HTTP client."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.vllm.engine.conftest import MODELS, Pool
from tests.vllm.engine.driver import START_S, environment, transfer_config
from tests.vllm.engine.models import make_model, prompt

BLOCK = 32
#: Each is a round trip through the engine: seconds, all together.
FORGET_TRIES = 2_000
HITS = re.compile(r"^vllm:external_prefix_cache_hits_total\{[^}]*\} (\S+)$", re.MULTILINE)


class Server:
    """One server and a client of it."""

    def __init__(self, master: str, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model",
                    str(make_model("llama", MODELS / "llama")), "--served-model-name", "tiny", "--host", "127.0.0.1",
                    "--port", str(port), "--dtype", "float32", "--enforce-eager", "--block-size", str(BLOCK),
                    "--max-model-len", "2048", "--max-num-seqs", "8", "--kv-transfer-config",
                    json.dumps(transfer_config(master=master)),
                ],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=environment(
                    VLLM_ENABLE_V1_MULTIPROCESSING="1", VLLM_SERVER_DEV_MODE="1", VLLM_LOGGING_LEVEL="INFO"
                ),
            )  # fmt: skip
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def wait_ready(self) -> None:
        """The port opens when the engine is ready; a connection that is refused is tried again."""
        transport = httpx.HTTPTransport(retries=0)
        with httpx.Client(transport=transport, base_url=self.http.base_url, timeout=5) as probe:
            for _ in range(int(START_S * 2)):
                if self.process.poll() is not None:
                    raise AssertionError(f"the server has ended:\n{self.log.read_text()[-4000:]}")
                try:
                    if probe.get("/health").status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                try:
                    self.process.wait(0.5)
                except subprocess.TimeoutExpired:
                    continue
        raise AssertionError(f"the server is not ready after {START_S} s:\n{self.log.read_text()[-4000:]}")

    def complete(self, tokens: list[int]) -> tuple[list[int], list[float]]:
        answer = self.http.post(
            "/v1/completions",
            json={
                "model": "tiny", "prompt": tokens, "max_tokens": 8, "temperature": 0, "logprobs": 0, "ignore_eos": True,
                "return_token_ids": True,
            },
        )  # fmt: skip
        answer.raise_for_status()
        [choice] = answer.json()["choices"]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def hits(self) -> float:
        """`external_prefix_cache_hits`, in tokens."""
        found = HITS.search(self.http.get("/metrics").text)
        return float(found[1]) if found else 0.0

    def forget(self) -> None:
        """Empty the engine's own cache; refused while a save still holds blocks, so asked until it is done."""
        for _ in range(FORGET_TRIES):
            answer = self.http.post("/reset_prefix_cache")
            answer.raise_for_status()
            if answer.json()["success"]:
                return
        raise AssertionError("the prefix cache was never reset")

    def end(self) -> int:
        self.http.close()
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def server(pool: Pool, tmp_path: Path) -> Iterator[Server]:
    server = Server(pool.address, tmp_path / "server.log")
    try:
        server.wait_ready()
        yield server
    finally:
        server.end()


def test_the_openai_server_loads_what_it_had_saved(server, pool, expected):
    tokens = prompt(31, 7 * BLOCK + 9)
    [(right, logprobs)] = expected([tokens])
    exact = (right, [float.fromhex(each) for each in logprobs])
    assert server.complete(tokens) == exact
    assert server.hits() == 0
    server.forget()
    assert pool.keys() == 7
    assert server.complete(tokens) == exact
    assert server.hits() == 7 * BLOCK
    metrics = server.http.get("/metrics").text
    assert re.search(r'^vllm:pykvpool_loads_total\{.*outcome="loaded"\} 1\.0$', metrics, re.MULTILINE)
    assert "pool I/O is done by" in server.log.read_text()
