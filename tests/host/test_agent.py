"""Engines and their host's node: what is shared, what one costs the other, and how either may end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from pykvpool.errors import ConfigError, Unavailable
from pykvpool.host.agent import rank as rank_module
from pykvpool.host.agent import wire
from pykvpool.host.agent.attaching import Where
from pykvpool.host.agent.port import AgentPort
from pykvpool.host.agent.rank import Rank
from pykvpool.host.agent.ring import RingFile
from pykvpool.host.agent.server import AgentServer
from pykvpool.host.port import BlockGroup, Found, Lapsed, Question, Removed, Run
from tests.host.nodes import NodeProcess
from tests.host.stage import SCOPE, Engine, Memory, chain, until


@pytest.fixture
def engine_of():
    """`engine_of(pool, name, ...)`: an engine attached to the pool's node."""
    ports = []

    def make(pool, name: str = "engine", **options) -> Engine:
        ports.append(AgentPort(name, socket=pool.agent().path, **options))
        return Engine(ports[-1])

    yield make
    for port in ports:
        port.close(0.0)


def sessions(pool) -> list[str]:
    return pool.on_loop(
        lambda: sorted(
            session.name for session in pool.core._context.state.sessions.by_id.values() if session.role == "client"
        )
    )


def test_all_engines_of_a_host_share_one_session_for_bytes_and_one_for_lookups(pool, engine_of):
    pool.agent()
    assert sessions(pool) == [], "a node without engines has no session for them"
    engines = [engine_of(pool, f"rank{number}").connected() for number in range(3)]
    for number, engine in enumerate(engines):
        memory = Memory(seed=number).fill()
        assert engine.save(memory.group(chain(5, f"r{number}"), range(5))).stored == 5
        assert engine.lookup(Question((SCOPE,), chain(5, f"r{number}"))).found == (Found(5),)
    assert sessions(pool) == ["n0-engines", "n0-engines-lookups"]
    assert pool.on_loop(lambda: sorted(pool.agent().engines)) == ["rank0", "rank1", "rank2"]


def test_many_blocks_pass_through_a_small_ring(pool, engine_of):
    engine = engine_of(pool, ring_bytes=16 << 10).connected()
    memory = Memory(blocks=300, layers=2, piece_bytes=999).fill()  # four blocks fit, and nothing is aligned
    saves = [engine.begin_save(memory.group(chain(100, f"j{i}"), range(100 * i, 100 * i + 100))) for i in range(3)]
    assert [engine.end_of(job).stored for job in saves] == [100] * 3
    copy = Memory(blocks=300, layers=2, piece_bytes=999)
    loads = [engine.begin_load(copy.group(chain(100, f"j{i}"), range(100 * i, 100 * i + 100))) for i in range(3)]
    assert all(engine.end_of(job).loaded for job in loads)
    assert all(copy.block(i) == memory.block(i) for i in range(300))


def test_a_burst_of_requests_costs_no_attachment(pool, engine_of):
    """The lookups of 400 prompts of 80,000 tokens are more than a socket takes at once."""
    engine, memory = engine_of(pool).connected(), Memory().fill()
    engine.save(memory.group(chain(5), range(5)))
    held = engine.lookup(Question((SCOPE,), chain(5)))
    keys = tuple(number.to_bytes(32, "big") for number in range(5_000))
    asked = [engine.begin_lookup(Question((SCOPE,), keys), timeout_ms=600_000) for _ in range(400)]
    load = engine.begin_load(memory.group(chain(5), range(10, 15)))
    for number in asked[::2]:
        engine.port.release(number)
    assert engine.end_of(load).loaded
    assert {engine.end_of(number).error for number in asked[1::2]} == {""}
    assert engine.look() == [], "what was held is held still, what was released is not answered"
    assert pool.on_loop(lambda: pool.agent().engines) == ["engine"]
    engine.port.release(held.lookup_id)
    until(lambda: not pool.leases())


def test_a_job_too_large_to_be_told_fails_alone(pool, engine_of):
    engine, memory = engine_of(pool).connected(), Memory().fill()
    huge = BlockGroup(SCOPE, (b"k" * 1024,) * 45_000, (0,) * 45_000, memory.runs)
    assert engine.load(huge).reason == "LimitExceeded"
    assert engine.lookup(Question((SCOPE,), huge.keys)).reason == "LimitExceeded"
    assert engine.save(memory.group(chain(5), range(5))).stored == 5


def test_a_ring_that_is_too_small_for_a_block_is_replaced(pool, engine_of):
    engine = engine_of(pool, ring_bytes=4096).connected()
    memory = Memory(blocks=4, layers=1, piece_bytes=100_000).fill()
    assert engine.save(memory.group(chain(4), range(4))).reasons == {"Unavailable": 4}
    assert engine.connected().save(memory.group(chain(4), range(4))).stored == 4


def test_p10_memory_that_is_not_there_fails_the_job_and_nothing_else(pool, engine_of):
    engine, memory = engine_of(pool).connected(), Memory().fill()
    assert engine.save(memory.group(chain(2), range(2))).stored == 2
    nowhere = BlockGroup(SCOPE, chain(2), (0, 1), (Run(4096, memory.block_bytes, memory.block_bytes),), (None, b"x"))
    assert engine.load(nowhere).reason == "TransferFailed"
    unsaved = BlockGroup(SCOPE, chain(2, "n"), nowhere.block_ids, nowhere.runs, nowhere.parents)
    assert engine.save(unsaved).reasons == {"TransferFailed": 2}
    assert engine.load(Memory().group(chain(2), range(2))).loaded


def test_a_reset_through_one_engine_process_fences_the_saves_of_the_others(pool, engine_of):
    scheduler, worker = engine_of(pool, "scheduler").connected(), engine_of(pool, "worker").connected()
    memory = Memory(blocks=256).fill()
    jobs = [worker.begin_save(memory.group(chain(256, f"job{number}"), range(256))) for number in range(6)]

    def reached() -> int:
        running = pool.on_loop(lambda: sum(len(each.work._saves) for each in pool.agent()._attached))
        return running + len(worker.look())

    until(lambda: reached() >= 6, "the node has not heard of all saves")
    assert scheduler.port.reset((SCOPE,), 10.0) is True
    for job in jobs:
        end = worker.end_of(job)
        assert end.stored + end.existed + end.dropped == 256
    questions = [Question((SCOPE,), chain(1, f"job{number}")) for number in range(6)]
    assert scheduler.lookup(*questions).found == (Found(0),) * 6


ENGINE = """
import sys
from pykvpool.host.agent.port import AgentPort
from pykvpool.host.port import Question
from pykvpool.runtime import real_runtime
from tests.host.nodes import NodeProcess
from tests.host.stage import SCOPE, Engine, Memory, chain
engine = Engine(AgentPort("mortal", socket=sys.argv[1])).connected()
memory = Memory(blocks=128).fill()
assert engine.save(memory.group(chain(8), range(8))).stored == 8
assert engine.lookup(Question((SCOPE,), chain(8))).found[0].count == 8
for number in range(20):
    engine.begin_save(memory.group(chain(128, f"job{number}"), range(128)))
print("busy", flush=True)
sys.stdin.read()
"""


def test_an_engine_process_that_is_killed_leaves_nothing_behind(pool, engine_of):
    survivor = engine_of(pool, "survivor").connected()
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE, pool.agent().path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "busy\n"
        assert pool.leases()
        process.kill()
    until(lambda: pool.on_loop(lambda: pool.agent().engines) == ["survivor"], "it is still attached")
    until(lambda: not pool.leases(), "its holds were not released")
    until(lambda: not pool.on_loop(lambda: pool.core._context.state.puts.by_id), "its puts are still open")
    memory = Memory().fill()
    assert survivor.load(memory.group(chain(8), range(8))).loaded


def test_what_one_engine_watches_is_told_to_it_alone_also_by_the_next_node(pool, engine_of):
    engine, neighbour = engine_of(pool, "a").connected(), engine_of(pool, "b").connected()
    engine.port.watch((SCOPE,))
    until(lambda: pool.on_loop(lambda: bool(pool.core._context.watching.by_scope)))
    pool.end_agent()
    pool.agent()
    assert engine.take(lambda event: isinstance(event, Removed)) == Removed(SCOPE, ())
    memory = Memory().fill()
    until(lambda: pool.on_loop(lambda: bool(pool.core._context.watching.by_scope)))
    assert neighbour.connected().save(memory.group(chain(2), range(2))).stored == 2
    assert neighbour.port.reset((SCOPE,), 10.0) is True
    assert engine.take(lambda event: isinstance(event, Removed)).keys == chain(2)
    assert not [event for event in neighbour.look() if isinstance(event, Removed)]


def test_p10_jobs_fail_at_once_when_the_node_goes_and_the_next_node_is_found(pool, engine_of):
    engine, memory = engine_of(pool).connected(), Memory(blocks=256).fill()
    engine.save(memory.group(chain(3), range(3)))
    held = engine.lookup(Question((SCOPE,), chain(3)))
    assert held.found == (Found(3),)
    jobs = [engine.begin_save(memory.group(chain(256, f"j{i}"), range(256)), timeout_ms=10_000_000) for i in range(9)]
    pool.end_agent()
    for job in jobs:
        end = engine.end_of(job)
        assert end.stored + end.existed + end.dropped == 256
    assert engine.end_of(held.lookup_id) == Lapsed(held.lookup_id)
    assert engine.load(memory.group(chain(3), range(3)), timeout_ms=10_000_000).reason == "Unavailable"
    pool.agent()
    assert engine.connected().load(memory.group(chain(3), range(3))).loaded


def test_p10_a_node_that_hangs_is_given_up_and_nothing_lands_late(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(rank_module, "PING_S", 0.05)
    monkeypatch.setattr(rank_module, "UNANSWERED", 10)
    path = str(tmp_path / "hangs.engines")
    memory, target = Memory(blocks=64, piece_bytes=4096).fill(), Memory(blocks=64, piece_bytes=4096)
    with NodeProcess(path, pool.address) as node:
        port = AgentPort("engine", socket=path)
        engine = Engine(port).connected()
        assert engine.save(memory.group(chain(64), range(64))).stored == 64
        node.signal(signal.SIGSTOP)
        load = engine.load(target.group(chain(64), range(64)), timeout_ms=10_000_000)
        assert (load.loaded, load.reason) == (False, "Unavailable")
        untouched = [target.block(i) for i in range(64)]
        node.signal(signal.SIGCONT)  # it wakes, and finishes what it had begun
        assert engine.connected().load(memory.group(chain(64), range(64))).loaded
        assert [target.block(i) for i in range(64)] == untouched
        port.close(0.0)


def test_p10_a_host_that_stood_still_takes_nobody_for_dead(pool, monkeypatch):
    """Tensor-parallel ranks that spin on every core stop this host for seconds, the node and the engine alike."""
    monkeypatch.setattr(rank_module, "PING_S", 0.001)

    async def scenario() -> None:
        loop, rank, stream = asyncio.get_running_loop(), Rank(Where("engine", list), pool.runtime, [].append), Silent()
        rank._use(stream)
        following = loop.create_task(rank._follow())
        clock, ahead = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: clock() + ahead)
        for _ in range(3):
            asked = len(stream.asked)
            ahead += 3600.0
            while len(stream.asked) == asked and not stream.aborted:
                await asyncio.sleep(0)
            stream.answers.put_nowait(wire.encode(wire.State(True)))
            while not stream.answers.empty() and not following.done():
                await asyncio.sleep(0)
            assert not stream.aborted
        with pytest.raises(Unavailable):
            await following
        assert stream.aborted
        await rank.close(0.0)

    asyncio.run(scenario())


class Silent:
    """A stream to a node that says only what the test has it say."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.aborted = False

    def send(self, frame: bytes) -> None:
        self.asked.append(frame)

    async def recv(self) -> bytes | None:
        return await self.answers.get()

    def abort(self) -> None:
        self.aborted = True
        self.answers.put_nowait(None)


def test_p10_a_node_that_is_killed_under_jobs_ends_them(pool, tmp_path):
    path = str(tmp_path / "dies.engines")
    memory = Memory(blocks=256, piece_bytes=4096).fill()
    with NodeProcess(path, pool.address) as node:
        port = AgentPort("engine", socket=path)
        engine = Engine(port).connected()
        jobs = [
            engine.begin_save(memory.group(chain(256, f"j{i}"), range(256)), timeout_ms=10_000_000) for i in range(9)
        ]
        node.kill()
        for job in jobs:
            end = engine.end_of(job)
            assert end.stored + end.existed + end.dropped == 256
    with NodeProcess(path, pool.address):
        assert engine.connected().save(memory.group(chain(2, "new"), range(2))).stored == 2
        port.close(0.0)


def test_p12_a_wrong_token_or_cluster_is_refused_with_the_reason(make_pool, caplog, tmp_path):
    pool = make_pool()
    pool.start()
    server = pool.agent(token="right", cluster="c")
    for options, reason in (
        ({"token": "wrong", "cluster": "c"}, "token does not match"),
        ({"cluster": "c"}, "a token is asked for here"),
        ({"token": "right", "cluster": "d"}, "cluster 'd' is not cluster 'c'"),
    ):
        port = AgentPort("engine", socket=server.path, **options)
        assert not port.wait_attached(20.0)
        assert Engine(port).save(Memory().group(chain(1), range(1))).reasons == {"Unavailable": 1}
        port.close(0.0)
        assert reason in caplog.text


def test_a_ring_that_could_shrink_is_refused(pool, engine_of, monkeypatch, caplog):
    pool.agent()
    monkeypatch.setattr("pykvpool.host.agent.ring.fcntl.fcntl", lambda *_: 0)
    port = engine_of(pool).port
    assert not port.wait_attached(20.0)
    until(lambda: "the ring is not sealed memory" in caplog.text)


@pytest.mark.parametrize("trouble", [OSError(24, "Too many files"), ValueError("a bug")], ids=["no files", "a bug"])
def test_a_search_that_breaks_is_not_the_last_one(pool, engine_of, monkeypatch, caplog, trouble):
    server, real = pool.agent(), RingFile.__init__
    left = [trouble, trouble]

    def broken(self, size_bytes: int) -> None:
        if left:
            raise left.pop()
        real(self, size_bytes)

    monkeypatch.setattr(RingFile, "__init__", broken)
    port = AgentPort("engine", socket=server.path)
    engine, memory = Engine(port).connected(), Memory().fill()
    assert engine.save(memory.group(chain(2), range(2))).stored == 2
    assert str(trouble.args[-1]) in caplog.text
    port.close(0.0)


def test_a_second_node_does_not_take_the_socket_of_one_that_serves(pool, tmp_path):
    first = pool.agent()

    async def second() -> None:
        server = AgentServer(first.path, "n1", pool.access("n1-engines"), pool.runtime)
        with pytest.raises(ConfigError, match="another process listens"):
            await server.start()
        await server.close()

    asyncio.run(second())
    assert os.path.exists(first.path)
