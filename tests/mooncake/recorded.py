"""What Mooncake and the pool were seen to do, side by side, and why they differ where they do.

`recorded.json` holds both values of every observation of the programs; `make test-mooncake` writes it anew, and the
table in docs/mooncake.md with it. Where the two differ there must be a reason here: a difference that nobody meant is
a bug.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parent / "recorded.json"
PAGE = Path(__file__).parents[2] / "docs" / "mooncake.md"
BEGIN, END = "<!-- differences: written by make test-mooncake -->\n", "<!-- end of differences -->\n"
#: Longest value shown in the table.
MAX_SHOWN = 60


@dataclass(frozen=True)
class Observation:
    """One call, on both."""

    program: str
    name: str
    mooncake: str
    pool: str

    @property
    def differs(self) -> bool:
        return self.mooncake != self.pool


def load() -> list[Observation]:
    """In the order of the programs."""
    table = json.loads(FILE.read_text("utf-8"))
    return [Observation(program, name, *values) for program, rows in table.items() for name, values in rows.items()]


def save(observations: list[Observation]) -> None:
    table: dict[str, dict[str, list[str]]] = {}
    for each in observations:
        table.setdefault(each.program, {})[each.name] = [each.mooncake, each.pool]
    FILE.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", "utf-8")


def reason_for(observation: Observation) -> str:
    """Why ours differs on purpose, "" where nobody said so."""
    if observation.name in REASONS:
        return REASONS[observation.name]
    state = _state(observation)
    return CRASH if state and observation.mooncake.startswith("killed by") else STATES.get(state, "")


def _state(observation: Observation) -> str:
    """What is wrong with a call that is otherwise fine, "" for other observations."""
    return next((state for state in STATES if observation.name.endswith(state)), "")


def table(observations: list[Observation]) -> str:
    """The differences as a table of Markdown; the methods of a store that is not set up share rows."""
    lines = ["| call | Mooncake | pykvpool | why |", "|---|---|---|---|"]
    shared: dict[tuple[str, ...], list[str]] = {}
    for each in observations:
        if not each.differs:
            continue
        state = _state(each)
        if state and each.name not in REASONS:
            key = (state, _code(each.mooncake), _code(each.pool), reason_for(each))
            shared.setdefault(key, []).append(each.name.removesuffix(state).strip())
        else:
            cells = (each.name, _code(each.mooncake), _code(each.pool), reason_for(each))
            lines.append("| " + " | ".join(cells) + " |")
    for (state, mooncake, pool, why), methods in shared.items():
        names = ", ".join(f"`{method}`" for method in methods)
        lines.append(f"| {state}: {names} | {mooncake} | {pool} | {why} |")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    shown = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
    return shown if shown.startswith(("killed by", "hangs", "not run")) else "`" + shown.replace("|", "\\|") + "`"


def write_page(observations: list[Observation]) -> None:
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n" + table(observations) + "\n" + END + after, "utf-8")


CRASH = "a wrong call is a code, not the end of the process"
UNSET = "one code says that the store is not set up, and a batch has one for each key"
LONG_KEY = "keys have at most 1,024 bytes, and no object has a longer one"
#: What a program observes of a method that is called so ends with these words.
STATES = {
    "before setup": UNSET,
    "after close": UNSET,
    "with an empty key": "an empty key is refused, and no object has it",
    "with a key of 10 MB": LONG_KEY,
}
UNREGISTERED = "only registered memory is read or written; what is not is refused"
EMPTY = "an object has at least one byte, as Mooncake itself says of put; nothing is stored under the key"
#: By the name of the observation.
REASONS: dict[str, str] = {
    "eight threads on one store": "a put that meets another writer of its key waits for it, so that a get finds it",
    "empty values": EMPTY,
    "get_batch of nothing": "one value for each key",
    "put_parts of nothing": EMPTY,
    "put_from of no bytes": EMPTY,
    "remove right after a get": "a get's lease ends with the get",
    "remove right after get_size": "asking for the size takes no lease",
    "batch_get_into_multi_buffers into more than needed": "a larger buffer is fine, as for get_into",
    "end of a session with holes": "what was never written cannot be read",
    "put with None for a config": "None means the defaults",
    "more replicas than nodes": "fewer copies than asked for are a code, not a silent success",
    "a thousand replicas": "fewer copies than asked for are a code, not a silent success",
    "the older soft pin": "both spellings work",
    "a copy over NVMe-oF": "the code for what is not supported",
    "prefer_alloc_in_same_node with put": "a preference of any put",
    "a replica's size and node": "an endpoint is the name that get_hostname gives, which preferred_segment takes",
    "they are named as get_hostname names them": "an endpoint is the name that get_hostname gives",
    "it is on the other node": "an endpoint is the name that get_hostname gives",
    "get without a local buffer": "gets need no local buffer",
    "a tenant of its own": "tenants are always apart; Mooncake's master has to be told to",
    "16 puts right after a node was killed all succeed": "a copy that fails is written to another node",
    "a tensor of complex numbers": "the code for what is not supported",
    "a tensor of one number": "the shape is kept",
    "a shard that was stored for another number of ranks": "another part than the one asked for is not returned",
    "get of the whole from shards": "the whole is put together",
    "get of a shard from a whole": "the shard is cut from it",
    "a mode that is none": "None, as for every get that cannot be",
    "put_from NULL": UNREGISTERED,
    "get_into NULL": UNREGISTERED,
    "register_buffer of memory of nobody": "the kernel's map of the process is asked",
    "put_from memory of nobody": UNREGISTERED,
    "put_from unregistered memory": UNREGISTERED,
    "get_into unregistered memory": UNREGISTERED,
    "put_from past the end of a buffer": UNREGISTERED,
    "get_into past the end of a buffer": UNREGISTERED,
    "batch_put_from_multi_buffers with NULL": UNREGISTERED,
    "put_from of a negative size": "a number that cannot be is a code like any other",
    "put of a numpy array": "all bytes of it, not one for each element",
    "the process is alive": CRASH,
}
#: Observations that depend on timing with Mooncake: they may differ, or not.
SOMETIMES = {"eight threads on one store", "16 puts right after a node was killed all succeed"}
