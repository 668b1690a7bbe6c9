"""One round of engine steps, run inside the engine's process by `vllm_steps.py`.

A cycle fills every slot of the batch with short requests that all run to the same length, so that saves of their
prompts go on while they decode. In the middle of a cycle long requests are handed in and taken back: they never get a
slot, so their only effect on the engine is what a connector does about their thousands of block hashes.
"""

from __future__ import annotations

import random
import time
from typing import Any


def work(
    commands: Any, *, cycles: int, slots: int, prompt_tokens: int, output_tokens: int, long_tokens: int, seed: int
) -> dict[str, list[float]]:
    """Seconds of every engine step, and of every handing in of a long request."""
    rng = random.Random(seed)
    steps: list[float] = []
    added: list[float] = []
    for cycle in range(cycles):
        names = [
            commands.submit(_tokens(rng, prompt_tokens), output_tokens, f"{seed}-{cycle}-{slot}")
            for slot in range(slots)
        ]
        waiting: list[str] = []
        long_prompt = _tokens(rng, long_tokens)
        number = 0
        while names:
            number += 1
            if long_tokens and number == output_tokens // 8:
                begin = time.perf_counter()
                waiting.append(commands.submit(long_prompt, 1, f"{seed}-{cycle}-long"))
                added.append(time.perf_counter() - begin)
            if waiting and number >= output_tokens * 3 // 4:
                commands.abort(waiting)
                waiting = []
            begin = time.perf_counter()
            commands.step()
            # A step in which no request has a slot yet (they wait for the pool's answers) runs no model.
            if commands.scheduler.running:
                steps.append(time.perf_counter() - begin)
            names = [name for name in names if commands.collect(name) is None]
        commands.settle()
    return {"steps": steps, "added": added}


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(4, 512) for _ in range(count)]
