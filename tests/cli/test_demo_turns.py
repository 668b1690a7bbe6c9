"""The demo's sessions: made up from statistics, or read from traces."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
import statistics
from pathlib import Path

import pytest

from pykvpool.cli.demo import traces, workload
from pykvpool.cli.demo.turns import Session, StreamPrompt, TracePrompt, Turn, interleave
from pykvpool.errors import InvalidArgument

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


def agentic_line(name: str = "trace_1", **changes: object) -> str:
    request = {"t": 0.0, "type": "n", "model": "m", "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 1.0}
    sub_agent = {
        "t": 6.0,
        "type": "subagent",
        "agent_id": "agent_001",
        "requests": [{**request, "model": "small", "t": 0.5}, {**request, "t": 9.0, "hash_ids": [1, 2, 3], "in": 200}],
    }
    session = {
        "id": name,
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [request, {**request, "t": 5.0, "hash_ids": [1, 2, 7]}, sub_agent, {**request, "t": 8.0}],
    }
    return json.dumps({**session, **changes})


def mooncake_line(**changes: object) -> str:
    request = {"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 2]}
    return json.dumps({**request, **changes})


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path) -> list[Session]:
    return list(traces.read_sessions(traces.recognise(path)))


def test_generated_sessions_have_the_published_shape() -> None:
    sessions = workload.generate(200, seed=7)
    assert abs(statistics.median(len(s.turns) for s in sessions) - 33) <= 3
    main = [[t for t in s.turns if not t.agent] for s in sessions]
    assert {turns[0].input_tokens for turns in main} == {12_000}
    growth = [(t[-1].input_tokens - t[0].input_tokens) / (len(t) - 1) for t in main]
    assert statistics.mean(growth) == pytest.approx(2_242, rel=0.1)
    inputs = sum(t.input_tokens for turns in main for t in turns)
    outputs = sum(t.output_tokens for turns in main for t in turns)
    assert inputs / outputs == pytest.approx(131, rel=0.15)
    gaps = sorted(t.gap_s for s in sessions for t in s.turns[1:])
    assert gaps[len(gaps) // 2] == pytest.approx(5.2, rel=0.1)
    assert gaps[len(gaps) * 99 // 100] == pytest.approx(81.4, rel=0.25)


def test_generated_prompts_begin_with_the_prompt_and_the_output_of_the_turn_before() -> None:
    for session in workload.generate(8, seed=1):
        known: dict[str, int] = {}
        for turn in session.turns:
            assert isinstance(turn.prompt, StreamPrompt)
            common, own = turn.prompt.parts
            assert common.stream == workload.COMMON_STREAM
            assert common.tokens + own.tokens == turn.input_tokens
            assert own.stream == (f"{session.name}/{turn.agent}" if turn.agent else session.name)
            assert turn.input_tokens > known.get(turn.agent, 0)
            known[turn.agent] = turn.input_tokens + turn.output_tokens


def test_the_same_seed_gives_the_same_sessions_and_another_seed_others() -> None:
    assert workload.generate(3, seed=5) == workload.generate(9, seed=5)[:3]
    assert workload.generate(3, seed=5) != workload.generate(3, seed=6)


def test_sub_agents_take_part() -> None:
    agents = {turn.agent for session in workload.generate(4, seed=0) for turn in session.turns}
    assert agents == {"", "sub-agent-1"}


def test_no_sessions_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="at least one"):
        workload.generate(0, seed=0)


def test_interleaving_keeps_the_order_within_a_session_and_loses_nothing() -> None:
    sessions = workload.generate(5, seed=3)
    turns = interleave(sessions, seed=3)
    for session in sessions:
        assert tuple(turn for turn in turns if turn.session == session.name) == session.turns
    assert len(turns) == sum(len(session.turns) for session in sessions)
    assert turns == interleave(sessions, seed=3)
    switches = sum(before.session != after.session for before, after in itertools.pairwise(turns))
    assert switches > len(turns) // 2


def test_a_pause_of_days_does_not_separate_sessions() -> None:
    def session(name: str) -> Session:
        prompt = TracePrompt(name, (1,))
        return Session(name, tuple(Turn(name, "", gap_s, prompt, 64, 1) for gap_s in (0.0, 1e6, 1e6)))

    order = [turn.session for turn in interleave([session("a"), session("b")], seed=0)]
    assert order == ["a", "b"] * 3


def test_an_agentic_trace_becomes_sessions_with_sub_agents_in_time_order(tmp_path: Path) -> None:
    (session,) = read(write(tmp_path / "a.jsonl", agentic_line()))
    assert [turn.agent for turn in session.turns] == ["", "", "agent_001", "", "agent_001"]
    assert [turn.gap_s for turn in session.turns] == [0.0, 5.0, 1.5, 1.5, 7.0]
    main, _, other_model, _, same_model = session.turns
    assert main.prompt == TracePrompt("trace_1/m", (1, 2))
    assert main.input_tokens == 130
    assert main.output_tokens == 5
    # A sub-agent shares the parent's ids; another model shares no bytes.
    assert same_model.prompt == TracePrompt("trace_1/m", (1, 2, 3))
    assert other_model.prompt == TracePrompt("trace_1/small", (1, 2))


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz"])
def test_compressed_and_plain_traces_read_alike(tmp_path: Path, suffix: str) -> None:
    data = (agentic_line("one") + "\n\n" + agentic_line("two") + "\n").encode()
    path = tmp_path / f"trace{suffix}"
    path.write_bytes({".jsonl": bytes, ".jsonl.gz": gzip.compress, ".jsonl.xz": lzma.compress}[suffix](data))
    assert [session.name for session in read(path)] == ["one", "two"]


def test_a_mooncake_trace_drops_the_last_block_unless_it_is_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", mooncake_line(), mooncake_line(input_length=1536, timestamp=4000))
    assert traces.recognise(path).block_tokens == 512
    part, whole = read(path)
    assert part.turns[0].prompt == TracePrompt("m.jsonl", (0, 1))
    assert whole.turns[0].prompt == TracePrompt("m.jsonl", (0, 1, 2))


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ((), "is empty"),
        (("[1]",), "line 1: not a JSON object"),
        (('{"a": 1}',), "line 1: neither an agentic trace .* it has a"),
        ((agentic_line(), "{"), "line 2"),
        ((agentic_line(), agentic_line(block_size="x")), r"line 2: .*block_size"),
        ((agentic_line(), agentic_line(block_size=16)), "line 2: block_size is 16, in the first line 64"),
        ((agentic_line(block_size=0),), "line 1: block_size is 0"),
        ((agentic_line(requests=[]),), "session 'trace_1' has no requests"),
        ((mooncake_line(), mooncake_line(hash_ids=["a"])), r"line 2: .*hash_ids"),
    ],
)
def test_a_bad_trace_names_file_and_line(tmp_path: Path, lines: tuple[str, ...], complaint: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    with pytest.raises(InvalidArgument, match=rf"bad\.jsonl.*{complaint}"):
        read(path)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"nowhere\.jsonl.*No such file"):
        read(tmp_path / "nowhere.jsonl")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(agentic_line().encode())[:-20])
    with pytest.raises(InvalidArgument, match=r"cut\.jsonl\.gz"):
        read(tmp_path / "cut.jsonl.gz")
    (tmp_path / "not.jsonl.xz").write_bytes(b"plain text\n")
    with pytest.raises(InvalidArgument, match=r"not\.jsonl\.xz"):
        read(tmp_path / "not.jsonl.xz")


@pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traces are not here")
def test_the_recorded_traces_can_be_read() -> None:
    agentic = traces.recognise(TRACES / "agentic_sessions.jsonl.xz")
    assert (agentic.format, agentic.block_tokens) == ("agentic", 64)
    reader = traces.read_sessions(agentic)
    first = next(reader)
    reader.close()
    assert len(first.turns) == 33
    assert all(len(turn.prompt.ids) == turn.input_tokens // 64 for turn in first.turns)
    mooncake = traces.recognise(TRACES / "mooncake_conversation.jsonl.gz")
    assert len(next(traces.read_sessions(mooncake)).turns) == 1
