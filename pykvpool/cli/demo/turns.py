"""What agents ask of engines: sessions of turns, each turn a prompt that begins with the prompt of the turn before.

A prompt is described, not spelled out: 80,000 tokens a turn would drown the pipe between the driver and the engines.
`StreamPrompt` names seeded token streams and how much of each to take; `TracePrompt` carries the block ids of a
recorded request. Both say exactly which blocks are equal, and nothing else matters to a cache. How a description
becomes block hashes is `prompts`' business; who runs which turn is the driver's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec import Struct

from pykvpool.model.base import Message, Tagged

#: Longest pause between two turns that counts for the order of turns (s): the P99 of the agents measured in the vLLM
#: and Mooncake study. Recorded sessions pause for days; without a bound a replay would run one session at a time.
MAX_GAP_S = 81.4
#: Mean time between the starts of two sessions (s): about one turn, so that all sessions overlap from the beginning.
MEAN_START_GAP_S = 5.0


class StreamPart(Message, frozen=True):
    """The first `tokens` tokens of the stream `stream`; equal names give equal tokens (for one seed)."""

    stream: str
    tokens: int


class StreamPrompt(Tagged, frozen=True, tag="stream"):
    """A prompt made of seeded streams, one after the other."""

    parts: tuple[StreamPart, ...]


class TracePrompt(Tagged, frozen=True, tag="trace"):
    """A recorded prompt: equal id under an equal `scope` means equal block and equal prefix."""

    #: What the ids are local to: the session (or the whole trace) and the model.
    scope: str
    ids: tuple[int, ...]


Prompt = StreamPrompt | TracePrompt


class Turn(Struct, frozen=True, gc=False):
    """One request to an engine."""

    session: str
    #: "" for the session's main agent, else the sub-agent's name.
    agent: str
    #: Seconds since the turn before of the same session began (0 for the first).
    gap_s: float
    #: What the engine is given, and afterwards knows: the prompt, and the output where the source says what it was.
    prompt: Prompt
    #: Tokens of the prompt; what hit rates are counted in.
    input_tokens: int
    #: Tokens generated. Those of a `StreamPrompt` are saved with the prompt (they begin the next one); a trace does
    #: not say which blocks they became.
    output_tokens: int


class Session(Struct, frozen=True):
    """Turns of one agent session with its sub-agents, in order."""

    name: str
    turns: tuple[Turn, ...]


def interleave(sessions: Sequence[Session], seed: int) -> list[Turn]:
    """All turns in the order in which they reach the cluster; within a session the order is kept.

    Sessions start one after the other at random (exponential) distances, then each turn follows after its gap.
    """
    rng = random.Random(f"{seed}/starts")
    arrivals: list[tuple[float, int, int, Turn]] = []
    start_s = 0.0
    for index, session in enumerate(sessions):
        now_s = start_s
        for position, turn in enumerate(session.turns):
            now_s += min(turn.gap_s, MAX_GAP_S)
            arrivals.append((now_s, index, position, turn))
        start_s += rng.expovariate(1 / MEAN_START_GAP_S)
    arrivals.sort(key=lambda arrival: arrival[:3])
    return [turn for *_, turn in arrivals]
