"""Recorded sessions as turns: readers for two public trace formats, one line at a time.

*Agentic* (callanjfox/kv-cache-tester): one session a line, `requests` with `t` (s), `in`, `out` and `hash_ids` of
64-token blocks that are local to the session; an entry of type "subagent" nests requests that share the parent's ids.
*Mooncake* (kvcache-ai/Mooncake, FAST'25): one request a line, `timestamp` (ms), `input_length`, `output_length`,
`hash_ids` of 512-token blocks, global to the file; its last id may stand for a part of a block, which no cache keeps.

In both an equal id means an equal block after an equal prefix. Different models never share bytes, so the model is part
of a prompt's scope. Files end in .jsonl, .jsonl.gz or .jsonl.xz and are decompressed as they are read: the agentic one
has 236 MB. Whatever is wrong is an `InvalidArgument` with file, line and field.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from pykvpool.cli.demo.turns import Session, TracePrompt, Turn
from pykvpool.errors import InvalidArgument

T = TypeVar("T")

#: Tokens of one id in Mooncake's traces (its README; the file does not say).
MOONCAKE_BLOCK_TOKENS = 512
#: Longest line (bytes). The longest recorded session has 9 MB; a file without line ends must not fill the memory.
MAX_LINE_BYTES = 64 << 20


class AgenticRequest(msgspec.Struct, gc=False):
    """One request of an agentic trace, or, of type "subagent", a nest of them. `t` counts from its parent's start."""

    type: str
    t: float
    model: str = ""
    input_tokens: int = msgspec.field(name="in", default=0)
    output_tokens: int = msgspec.field(name="out", default=0)
    hash_ids: tuple[int, ...] = ()
    agent_id: str = ""
    requests: tuple[AgenticRequest, ...] = ()


class AgenticSession(msgspec.Struct):
    """One line of an agentic trace."""

    id: str
    block_size: int
    requests: tuple[AgenticRequest, ...]


class MooncakeRequest(msgspec.Struct, gc=False):
    """One line of a Mooncake trace."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


class Trace(msgspec.Struct, frozen=True):
    """What a trace file says about itself: its format ("agentic" or "mooncake") and tokens per block."""

    path: Path
    format: str
    block_tokens: int


def recognise(path: Path) -> Trace:
    """Recognise a trace by its first line. Raises `InvalidArgument` where it is missing, empty or of another kind."""
    with closing(_lines(path)) as lines:
        number, line = next(lines, (0, b""))
    if not number:
        raise InvalidArgument(f"{path} is empty: a trace has one JSON object a line")
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"{path}, line {number}: not a JSON object ({error})") from error
    if "requests" in fields:
        session = _decode(line, AgenticSession, path, number)
        if session.block_size < 1:
            raise InvalidArgument(f"{path}, line {number}: block_size is {session.block_size}, it must be positive")
        return Trace(path, "agentic", session.block_size)
    if "timestamp" in fields:
        return Trace(path, "mooncake", MOONCAKE_BLOCK_TOKENS)
    raise InvalidArgument(
        f"{path}, line {number}: neither an agentic trace (a session with 'requests') nor a Mooncake trace "
        f"(a request with 'timestamp'); it has {', '.join(sorted(fields)) or 'no fields'}"
    )


def read_sessions(trace: Trace) -> Iterator[Session]:
    """The sessions of a trace, in file order; a Mooncake request is a session of one turn (the file names none)."""
    with closing(_lines(trace.path)) as lines:
        if trace.format == "agentic":
            for number, line in lines:
                yield _agentic(_decode(line, AgenticSession, trace.path, number), trace, number)
        else:
            for number, line in lines:
                yield _mooncake(_decode(line, MooncakeRequest, trace.path, number), trace, number)


def _agentic(recorded: AgenticSession, trace: Trace, line: int) -> Session:
    if recorded.block_size != trace.block_tokens:
        raise InvalidArgument(
            f"{trace.path}, line {line}: block_size is {recorded.block_size}, in the first line {trace.block_tokens}: "
            "blocks of one replay have one size"
        )
    arrivals: list[tuple[float, str, AgenticRequest]] = []
    for entry in recorded.requests:
        if entry.type == "subagent":
            agent = entry.agent_id or "sub-agent"
            arrivals += [(entry.t + nested.t, agent, nested) for nested in entry.requests]
        else:
            arrivals.append((entry.t, "", entry))
    arrivals.sort(key=lambda arrival: arrival[0])
    turns = []
    before_s = arrivals[0][0] if arrivals else 0.0
    for at_s, agent, request in arrivals:
        prompt = TracePrompt(f"{recorded.id}/{request.model}", request.hash_ids)
        turns.append(Turn(recorded.id, agent, at_s - before_s, prompt, request.input_tokens, request.output_tokens))
        before_s = at_s
    if not turns:
        raise InvalidArgument(f"{trace.path}, line {line}: session {recorded.id!r} has no requests")
    return Session(recorded.id, tuple(turns))


def _mooncake(request: MooncakeRequest, trace: Trace, line: int) -> Session:
    whole_blocks = request.input_length // trace.block_tokens
    prompt = TracePrompt(trace.path.name, request.hash_ids[:whole_blocks])
    name = f"request-{line}"
    return Session(name, (Turn(name, "", 0.0, prompt, request.input_length, request.output_length),))


def _decode(line: bytes, kind: type[T], path: Path, number: int) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"{path}, line {number}: {error}") from error


def _lines(path: Path) -> Generator[tuple[int, bytes], None, None]:
    """(line number from 1, line) of every line that is not blank."""
    number = 0
    try:
        with _open(path) as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise InvalidArgument(f"{path}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB, not a trace")
                if not line.isspace():
                    yield number, line
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidArgument(f"cannot read the trace {path} after line {number}: {reason}") from error


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".xz":
        return lzma.open(path)
    if path.suffix == ".gz":
        return gzip.open(path)  # type: ignore[return-value]  # GzipFile has all of IO[bytes] that is used here
    return path.open("rb")
