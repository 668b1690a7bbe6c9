"""Two passes over the same turns, on real processes: engines alone, then engines with a pool.

A turn goes to the engine that is next (round robin, the routing that helps a cache least), each engine runs its turns
one after the other, and a turn starts when the turn before of its session has ended. So the order in which any engine
sees turns is the same in both passes, and so are the hits of its own memory. Time that runs out cuts both passes at the
same turns. Every process started here is gone when `run_demo` returns or raises.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from pykvpool.cli.demo.messages import (
    BeginPass,
    Failed,
    FromEngine,
    Ready,
    RunTurn,
    Setup,
    ToEngine,
    TurnResult,
    encode,
    receive,
)
from pykvpool.cli.demo.turns import Turn
from pykvpool.cli.processes import Child, Children
from pykvpool.cli.running import all_of
from pykvpool.client import Client
from pykvpool.errors import ProtocolError, from_code
from pykvpool.model.replies import State

#: Part of the time that the pass without the pool may take; it moves no bytes between processes, so it needs less.
FIRST_PASS_RATIO = 0.35


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What is started. Sizes in bytes."""

    engines: int
    nodes: int
    node_bytes: int
    block_tokens: int
    block_bytes: int
    #: Blocks in each engine's own memory.
    slots: int
    seed: int
    #: Fabrics that engines may use; empty: whichever is cheapest.
    fabrics: tuple[str, ...]
    #: Both passes together take about this long at most (s).
    max_seconds: float
    #: Kill a node in the middle of the second pass, without a warning.
    kill_node: bool = False


@dataclass(slots=True)
class Pass:
    """One pass: results by turn number."""

    with_pool: bool
    results: dict[int, TurnResult] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """Both passes over the turns that both completed, and the pool's state at the end."""

    alone: Pass
    pooled: Pass
    #: Turns there were to run.
    turns: int
    state: State
    #: Name of the node that was killed, "" for none.
    killed_node: str = ""


#: Called after every turn: the pass, and how many turns it is to run.
Progress = Callable[[Pass, int], None]


class TurnRunner(Protocol):
    """What a pass needs of an engine."""

    async def ready(self, message: BeginPass) -> None: ...

    async def run(self, number: int, turn: Turn) -> TurnResult: ...


class EngineHandle:
    """The driver's end of one engine process."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._decoder = msgspec.msgpack.Decoder(FromEngine)

    async def ask(self, message: ToEngine) -> FromEngine:
        """Send a message and await its answer. Raises the engine's error, `ChildFailed` where it ended."""
        self._child.stdin.write(encode(message))
        try:
            await self._child.stdin.drain()
        except ConnectionError:
            raise await self._child.failure("is gone") from None
        answer = await receive(self._child.stdout, self._decoder)
        if answer is None:
            raise await self._child.failure("is gone")
        if isinstance(answer, Failed):
            raise from_code(answer.code, f"{self._child.name}: {answer.message}")
        return answer

    async def run(self, number: int, turn: Turn) -> TurnResult:
        answer = await self.ask(RunTurn(number, turn))
        if not isinstance(answer, TurnResult):
            raise ProtocolError(f"{self._child.name} answered a turn with {type(answer).__name__}")
        return answer

    async def ready(self, message: Setup | BeginPass) -> None:
        answer = await self.ask(message)
        if not isinstance(answer, Ready):
            raise ProtocolError(f"{self._child.name} answered {type(message).__name__} with {type(answer).__name__}")


async def run_demo(
    settings: DemoSettings, turns: Sequence[Turn], say: Callable[[str], None], progress: Progress
) -> DemoOutcome:
    """Start everything, run both passes, end everything. Raises `PoolError` where a process fails."""
    with tempfile.TemporaryDirectory(prefix="pykvpool-demo-") as sockets:
        async with Children() as children:
            return await _run(children, sockets, settings, turns, say, progress)


async def _run(
    children: Children,
    sockets: str,
    settings: DemoSettings,
    turns: Sequence[Turn],
    say: Callable[[str], None],
    progress: Progress,
) -> DemoOutcome:
    say("starting the master and its nodes")
    master = await children.start("master", "pykvpool", "master", "--supervised", "--listen", "tcp://127.0.0.1:0")
    masters = (await master.announcement()).addresses
    nodes = [
        await children.start(
            f"node-{number}", "pykvpool", "node", "--supervised", "--name", f"node-{number}",
            "--master", masters[0], "--segment-size", str(settings.node_bytes), "--shm-dir", sockets,
        )
        for number in range(settings.nodes)
    ]  # fmt: skip
    for node in nodes:
        await node.announcement()
    say("starting the engines")
    engines = await _start_engines(children, settings, masters)
    started = time.perf_counter()
    plan = dict(enumerate(turns))
    alone = await run_pass(engines, plan, False, settings.max_seconds * FIRST_PASS_RATIO, progress)
    left_s = settings.max_seconds - (time.perf_counter() - started)
    victim = nodes[-1] if settings.kill_node else None
    if victim is not None:
        progress = _killing(victim, say, progress)
    pooled = await run_pass(engines, {n: plan[n] for n in alone.results}, True, left_s, progress)
    async with await Client.connect(masters, name="demo", role="reader") as client:
        state = await client.state()
    keep_common(alone, pooled)
    return DemoOutcome(alone, pooled, len(turns), state, victim.name if victim is not None else "")


async def _start_engines(children: Children, settings: DemoSettings, masters: tuple[str, ...]) -> list[EngineHandle]:
    engines = []
    for number in range(settings.engines):
        child = await children.start(f"engine-{number}", "pykvpool.cli.demo.engine_process")
        engines.append(EngineHandle(child))
    setups = [
        Setup(
            f"engine-{number}", settings.seed, settings.block_tokens, settings.block_bytes, settings.slots, masters, "",
            settings.fabrics,
        )
        for number in range(settings.engines)
    ]  # fmt: skip
    await all_of(engine.ready(setup) for engine, setup in zip(engines, setups, strict=True))
    return engines


async def run_pass(
    engines: Sequence[TurnRunner],
    turns: Mapping[int, Turn],
    with_pool: bool,
    seconds: float,
    progress: Progress,
    clock: Callable[[], float] = time.perf_counter,
) -> Pass:
    """Run as many of `turns` as fit into `seconds`; turns begun are ended.

    Those completed are, for each engine and for each session, the first ones of `turns`.
    """
    this = Pass(with_pool)
    started = clock()
    for engine in engines:
        await engine.ready(BeginPass(with_pool))
    before = _predecessors(turns)
    #: Set when a turn has ended, and all at once when the time is over.
    ends = {number: asyncio.Event() for number in turns}

    async def serve(engine: TurnRunner, own: list[int]) -> None:
        for number in own:
            earlier = before[number]
            if earlier is not None:
                await ends[earlier].wait()
            if clock() - started > seconds:
                for end in ends.values():
                    end.set()
            if ends[number].is_set():
                return
            this.results[number] = await engine.run(number, turns[number])
            ends[number].set()
            this.seconds = clock() - started
            progress(this, len(turns))

    await all_of(
        serve(engine, [number for number in sorted(turns) if number % len(engines) == position])
        for position, engine in enumerate(engines)
    )
    return this


def _killing(victim: Child, say: Callable[[str], None], progress: Progress) -> Progress:
    """`progress`, and the end of a node half way through the pass."""

    def kill_half_way(this: Pass, turns: int) -> None:
        progress(this, turns)
        if len(this.results) == turns // 2:
            say(f"killing {victim.name}")
            victim.process.kill()

    return kill_half_way


def _predecessors(turns: Mapping[int, Turn]) -> dict[int, int | None]:
    """For each turn the one before it of the same session, None for a session's first."""
    before: dict[int, int | None] = {}
    latest: dict[str, int] = {}
    for number in sorted(turns):
        session = turns[number].session
        before[number] = latest.get(session)
        latest[session] = number
    return before


def keep_common(alone: Pass, pooled: Pass) -> None:
    """Drop turns that one pass alone completed."""
    common = alone.results.keys() & pooled.results.keys()
    for this in (alone, pooled):
        this.results = {number: this.results[number] for number in sorted(common)}
