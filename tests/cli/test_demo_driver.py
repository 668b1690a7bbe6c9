"""The two passes, with engines that are functions: who runs what, in which order, and what a cut leaves."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest

from pykvpool.cli.demo.driver import DemoOutcome, DemoSettings, Pass, keep_common, run_pass
from pykvpool.cli.demo.messages import BeginPass, Failed, Ready, RunTurn, Setup, ToEngine, TurnResult, encode, receive
from pykvpool.cli.demo.report import explanations, quantile, summarise, summarise_pass
from pykvpool.cli.demo.turns import Turn, interleave
from pykvpool.cli.demo.workload import generate
from pykvpool.errors import InternalError, ProtocolError
from pykvpool.model.replies import State

TURNS = dict(enumerate(interleave(generate(4, seed=0, max_turns=9), seed=0)))


class Scripted:
    """An engine that remembers its turns and yields to the loop while it works."""

    def __init__(self, log: list[tuple[str, int]], fail_at: int = -1) -> None:
        self.log = log
        self.passes: list[bool] = []
        self.turns: list[int] = []
        self._fail_at = fail_at

    async def ready(self, message: BeginPass) -> None:
        self.passes.append(message.pool)

    async def run(self, number: int, turn: Turn) -> TurnResult:
        if number == self._fail_at:
            raise InternalError("broken")
        self.log.append(("begin", number))
        self.turns.append(number)
        for _ in range(number % 4):
            await asyncio.sleep(0)
        self.log.append(("end", number))
        return TurnResult(number, turn.input_tokens, own_tokens=16)


def ignore(this: Pass, turns: int) -> None:
    pass


async def test_turns_go_round_robin_and_each_engine_keeps_their_order() -> None:
    engines = [Scripted([]) for _ in range(3)]
    this = await run_pass(engines, TURNS, True, 60.0, ignore)
    assert [engine.passes for engine in engines] == [[True]] * 3
    assert [engine.turns for engine in engines] == [sorted(n for n in TURNS if n % 3 == e) for e in range(3)]
    assert this.results.keys() == TURNS.keys()


async def test_a_turn_waits_for_the_turn_before_of_its_session() -> None:
    log: list[tuple[str, int]] = []
    await run_pass([Scripted(log) for _ in range(3)], TURNS, False, 60.0, ignore)
    for session in {turn.session for turn in TURNS.values()}:
        numbers = [number for number, turn in sorted(TURNS.items()) if turn.session == session]
        for earlier, later in itertools.pairwise(numbers):
            assert log.index(("end", earlier)) < log.index(("begin", later))


@pytest.mark.parametrize("allowed", [0, 1, 10, 25])
async def test_time_that_runs_out_ends_a_pass_at_a_beginning_of_every_queue(allowed: int) -> None:
    ticks = itertools.count()
    engines = [Scripted([]) for _ in range(3)]
    this = await asyncio.wait_for(
        run_pass(engines, TURNS, True, float(allowed), ignore, lambda: float(next(ticks))), 10
    )
    done = this.results.keys()
    assert len(done) < len(TURNS)
    for number in done:
        assert all(earlier in done for earlier in TURNS if earlier < number and earlier % 3 == number % 3)
        session = TURNS[number].session
        assert all(earlier in done for earlier in TURNS if earlier < number and TURNS[earlier].session == session)


async def test_an_engine_that_fails_ends_the_pass_with_its_error() -> None:
    engines = [Scripted([], fail_at=7) for _ in range(3)]
    with pytest.raises(InternalError, match="broken"):
        await run_pass(engines, TURNS, True, 60.0, ignore)


def test_both_passes_are_compared_over_the_turns_that_both_completed() -> None:
    alone = Pass(False, {n: TurnResult(n, 100) for n in (0, 1, 2, 3)})
    pooled = Pass(True, {n: TurnResult(n, 100) for n in (2, 0, 1)})
    keep_common(alone, pooled)
    assert list(alone.results) == list(pooled.results) == [0, 1, 2]


def test_a_pass_adds_up() -> None:
    results = [
        TurnResult(0, 100, own_tokens=32, pool_tokens=48, lookup_s=0.002, loaded_blocks=3, loaded_bytes=300, load_s=0.5,
                   verified_bytes=300, fabric_bytes={"shm": 300}),
        TurnResult(1, 100, own_tokens=16, lookup_s=0.004, saved_bytes=100, save_s=0.1, not_saved={"PoolFull": 2},
                   fabric_bytes={"shm": 100, "tcp": 5}),
        TurnResult(2, 50),
    ]  # fmt: skip
    summary = summarise_pass(Pass(True, {result.number: result for result in results}, seconds=2.0))
    assert (summary.input_tokens, summary.own_hit_tokens, summary.pool_hit_tokens) == (250, 48, 48)
    assert (summary.computed_tokens, summary.hit_rate) == (154, 96 / 250)
    assert (summary.load_bytes_per_s, summary.save_bytes_per_s) == (600.0, 1000.0)
    assert (summary.lookups, summary.lookup_p50_s, summary.lookup_p99_s) == (2, 0.002, 0.004)
    assert (summary.fabric_bytes, summary.not_saved) == ({"shm": 400, "tcp": 5}, {"PoolFull": 2})


def test_an_empty_pass_divides_nothing_by_nothing() -> None:
    summary = summarise_pass(Pass(True))
    assert (summary.hit_rate, summary.load_bytes_per_s, summary.lookup_p99_s) == (0.0, 0.0, 0.0)


def test_quantiles() -> None:
    assert quantile([3.0, 1.0, 2.0, 4.0], 50) == 2.0
    assert quantile([3.0, 1.0, 2.0, 4.0], 99) == 4.0
    assert quantile([float(n) for n in range(1, 101)], 99) == 99.0


@pytest.mark.parametrize(("wrong", "verified", "right"), [(0, 300, True), (1, 300, False), (0, 299, False)])
def test_one_wrong_or_unverified_byte_fails_the_run(wrong: int, verified: int, right: bool) -> None:
    result = TurnResult(0, 100, loaded_bytes=300, verified_bytes=verified, wrong_blocks=wrong)
    settings = DemoSettings(3, 3, 1 << 28, 16, 16_384, 64, 0, (), 60.0)
    state = State((), (), 0, 0, 0, 0, 0, 0, {})
    outcome = DemoOutcome(Pass(False, {0: TurnResult(0, 100)}), Pass(True, {0: result}), 2, state)
    summary = summarise("Made up", settings, [TURNS[0], TURNS[1]], outcome)
    assert summary.every_byte_right is right
    assert (summary.turns, summary.turns_left_out) == (1, 1)
    assert any("Left out: 1 turn, because" in line for line in explanations(summary))
    assert any("1/128 of the KV" in line for line in explanations(summary))


async def test_messages_survive_the_pipe() -> None:
    reader = asyncio.StreamReader()
    sent = [Setup("e", 1, 16, 64, 8, ("tcp://a:1",), "", ("shm",)), BeginPass(True), RunTurn(3, TURNS[3])]
    for message in sent:
        reader.feed_data(encode(message))
    reader.feed_eof()
    decoder = msgspec.msgpack.Decoder(ToEngine)
    assert [await receive(reader, decoder) for _ in sent] == sent
    assert await receive(reader, decoder) is None
    assert msgspec.msgpack.decode(encode(Failed(-200, "full"))[4:], type=Failed | Ready | TurnResult).code == -200


@pytest.mark.parametrize("data", [b"\x02\x00\x00\x00\xc1\xc1", b"\xff\xff\xff\xff", b"\x05\x00\x00\x00\x01", b"\x01"])
async def test_garbage_in_the_pipe_is_refused(data: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    with pytest.raises(ProtocolError):
        await receive(reader, msgspec.msgpack.Decoder(ToEngine))
