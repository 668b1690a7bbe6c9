"""Agent sessions made up from published statistics, the same for the same seed.

The numbers are those of the vLLM and Mooncake study of 610 Codex sessions on SWE-bench Pro: a median of 33 turns,
prompts that grow from 12,000 to 80,000 tokens by 2,242 a turn, 131 input tokens for one of output, pauses of 5.2 s in
the median and 81.4 s at P99. Spreads that the study does not give are ours and marked so. Every session begins with the
same system prompt and tools; some send out a sub-agent, which begins with them too and is then on its own.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from pykvpool.cli.demo.turns import Session, StreamPart, StreamPrompt, Turn
from pykvpool.errors import InvalidArgument

#: Quantile of the normal distribution at 0.99: turns a median and a P99 into a log-normal's spread.
Z99 = 2.326
#: Name of the token stream that all sessions begin with.
COMMON_STREAM = "system prompt and tools"


@dataclass(frozen=True, slots=True)
class Statistics:
    """What sessions look like. Times in seconds, lengths in tokens."""

    median_turns: int = 33
    #: Spread of the number of turns (log-normal). Ours.
    turns_sigma: float = 0.15
    first_tokens: int = 12_000
    #: The part of the first prompt that all sessions share. Ours: a system prompt with the descriptions of its tools.
    common_tokens: int = 2_048
    turn_tokens: int = 2_242
    #: Spread of the growth of one turn (log-normal, the mean is kept). Ours: tool results are short or very long.
    turn_sigma: float = 0.5
    #: Input tokens for one output token, over a whole session.
    input_per_output: float = 131.0
    gap_median_s: float = 5.2
    gap_p99_s: float = 81.4
    #: One session in this many sends out a sub-agent. Ours, about as often as in recorded sessions.
    sub_agent_every: int = 4
    #: Turns of a sub-agent. Ours: the recorded ones have about 11.
    sub_agent_turns: int = 11


def generate(sessions: int, seed: int, statistics: Statistics | None = None, max_turns: int = 0) -> list[Session]:
    """`sessions` sessions; the first n do not depend on how many follow. `max_turns` cuts each (0: not).

    Raises `InvalidArgument` for less than one session.
    """
    if sessions < 1:
        raise InvalidArgument(f"{sessions} sessions: at least one is needed")
    shape = statistics or Statistics()
    return [_session(number, seed, shape, max_turns) for number in range(sessions)]


def _session(number: int, seed: int, shape: Statistics, max_turns: int) -> Session:
    rng = random.Random(f"{seed}/session/{number}")
    name = f"session-{number}"
    count = max(2, round(rng.lognormvariate(math.log(shape.median_turns), shape.turns_sigma)))
    turns = _agent_turns(rng, name, "", count, shape)
    if number % shape.sub_agent_every == 1:
        sub_agent = _agent_turns(rng, name, "sub-agent-1", shape.sub_agent_turns, shape)
        middle = len(turns) // 2
        turns[middle:middle] = sub_agent
    if max_turns:
        turns = turns[:max_turns]
    turns[0] = Turn(name, "", 0.0, turns[0].prompt, turns[0].input_tokens, turns[0].output_tokens)
    return Session(name, tuple(turns))


def _agent_turns(rng: random.Random, session: str, agent: str, count: int, shape: Statistics) -> list[Turn]:
    """One agent's turns: each prompt is the former prompt, its output, and what tools and people said since."""
    gap_sigma = math.log(shape.gap_p99_s / shape.gap_median_s) / Z99
    stream = f"{session}/{agent}" if agent else session
    tokens = shape.first_tokens
    mean_input = shape.first_tokens + shape.turn_tokens * (count - 1) / 2
    turns = []
    for _ in range(count):
        output = max(1, round(mean_input / shape.input_per_output * rng.uniform(0.5, 1.5)))
        parts = (StreamPart(COMMON_STREAM, shape.common_tokens), StreamPart(stream, tokens - shape.common_tokens))
        gap_s = rng.lognormvariate(math.log(shape.gap_median_s), gap_sigma)
        turns.append(Turn(session, agent, gap_s, StreamPrompt(parts), tokens, output))
        growth = rng.lognormvariate(math.log(shape.turn_tokens) - shape.turn_sigma**2 / 2, shape.turn_sigma)
        tokens += max(output + 1, round(growth))
    return turns
