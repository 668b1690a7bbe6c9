"""What the connector costs an engine's steps: two real engines, one with it and one without, measured in turn.

    make bench-vllm                                   (or: python benchmarks/vllm_steps.py [--rounds 12] [--json])

Needs the engine's venv (`make test-vllm` makes it). The engine with the connector uses a pool whose master answers late
(100 ms more, by a relay between it and everybody), while the engine saves every prompt and is asked about requests of
5,000 block hashes. Rounds of the two engines alternate, and the figures are ratios: the machine's other work falls on
both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "connector"), str(ROOT / "sim")]

from tests.vllm.engine.driver import Engine, environment, transfer_config  # noqa: E402
from tests.vllm.engine.models import make_model  # noqa: E402

MODELS = Path(os.environ.get("TINY_MODELS", ROOT / ".venv-vllm" / "models"))
#: The engine on a CPU wants multiples of 32; a hash is of one block.
BLOCK_TOKENS = 32
LONG_HASHES = 5_000


class SlowRelay:
    """Forwards TCP both ways; what the target says arrives later by `delay_s`, in order and undivided in rate."""

    def __init__(self, target: tuple[str, int], delay_s: float) -> None:
        self._target = target
        self._delay_s = delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            target = socket.create_connection(self._target)
            for each in (peer, target):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._forward, args=(peer, target, 0.0), daemon=True).start()
            threading.Thread(target=self._forward, args=(target, peer, self._delay_s), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, delay_s: float) -> None:
        import queue

        pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def send() -> None:
            while True:
                due, data = pieces.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    with contextlib.suppress(OSError):
                        sink.shutdown(socket.SHUT_WR)
                    return
                with contextlib.suppress(OSError):
                    sink.sendall(data)

        threading.Thread(target=send, daemon=True).start()
        while True:
            try:
                data = source.recv(1 << 18)
            except OSError:
                data = b""
            pieces.put((time.monotonic() + delay_s, data))
            if not data:
                return


def start(stack: contextlib.ExitStack, *arguments: str) -> dict[str, Any]:
    """A master or node as a process, and what it announced."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pykvpool", *arguments, "--supervised"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    stack.callback(process.kill)
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="rounds of each engine")
    parser.add_argument("--cycles", type=int, default=4, help="cycles in a round")
    parser.add_argument("--delay-ms", type=float, default=100.0, help="how much later the master answers")
    parser.add_argument("--hashes", type=int, default=LONG_HASHES, help="block hashes of a long request")
    parser.add_argument("--control", action="store_true", help="no connector in either engine: the noise itself")
    parser.add_argument("--json", action="store_true", help="one line for programs")
    options = parser.parse_args()
    long_tokens = options.hashes * BLOCK_TOKENS
    shape = {
        "cycles": options.cycles, "slots": 8, "prompt_tokens": 6 * BLOCK_TOKENS, "output_tokens": 48,
        "long_tokens": long_tokens,
    }  # fmt: skip
    model = make_model("llama", MODELS / "llama")
    settings: dict[str, Any] = {
        "max_num_seqs": shape["slots"], "max_model_len": long_tokens + 64, "kv_cache_memory_bytes": 300 << 20,
        "max_num_batched_tokens": 2048,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        [address] = start(stack, "master", "--listen", "tcp://127.0.0.1:0")["addresses"]
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        relay = SlowRelay((host, int(port)), options.delay_ms / 1_000)
        start(stack, "node", "--name", "n1", "--master", relay.address, "--segment-size", "512MiB")
        transfer = None if options.control else transfer_config(master=relay.address)
        env = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
        engines = {
            "without": Engine(model, folder / "without.log", env=env, **settings),
            "with": Engine(model, folder / "with.log", env=env, transfer=transfer, **settings),
        }
        for engine in engines.values():
            stack.callback(engine.kill)
            engine.ready()
        seen: dict[str, dict[str, list[float]]] = {name: {"steps": [], "added": []} for name in engines}
        for number in range(-1, options.rounds):
            order = list(engines) if number % 2 else list(reversed(engines))
            for name in order:
                arguments = shape | {"seed": number + 1, "cycles": options.cycles if number >= 0 else 1}
                code = f"from benchmarks.vllm_round import work\nresult = work(commands, **{arguments!r})"
                found = engines[name].run(code)
                if number >= 0:
                    for kind, values in found.items():
                        seen[name][kind] += values
            if number >= 0 and not options.json:
                print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        objects = json.loads(
            subprocess.run(
                [sys.executable, "-m", "pykvpool", "status", "--json", "--master", address],
                capture_output=True, text=True, check=True, env=environment(),
            ).stdout
        )["objects"]  # fmt: skip
    figures: dict[str, Any] = {"objects_saved": objects, "steps": len(seen["with"]["steps"])}
    for kind, label in (("steps", "step"), ("added", "add_request")):
        for part in (0.5, 0.99):
            both = {name: percentile(seen[name][kind], part) * 1_000 for name in engines}
            figures[f"{label}_p{part * 100:.0f}"] = {
                "without_ms": round(both["without"], 3),
                "with_ms": round(both["with"], 3),
                "ratio": round(both["with"] / both["without"], 3),
            }
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{figures['steps']} steps of each engine; {objects} objects in the pool at the end")
    for name, value in figures.items():
        if isinstance(value, dict):
            without, with_it, ratio = value["without_ms"], value["with_ms"], value["ratio"]
            print(f"  {name:18} {without:9.3f} ms without {with_it:9.3f} ms with  x {ratio:.3f}")


if __name__ == "__main__":
    main()
