"""Engines at work while their node stops, dies and comes back, and the master restarts: whatever happens, every job is
reported once, what is said to be loaded is what was saved, and nothing is touched after the report.
"""

from __future__ import annotations

import collections
import ctypes
import os
import random
import signal
import time

import pytest

from pykvpool.host.agent import rank as rank_module
from pykvpool.host.agent.port import AgentPort
from pykvpool.host.embedded import EmbeddedPort
from pykvpool.host.port import Answer, LoadDone, LoadJob, Lookup, Question, SaveDone, SaveJob
from tests.host.nodes import NodeProcess
from tests.host.stage import SCOPE, Memory, until

BLOCKS, PIECE_BYTES, LAYERS = 300, 64, 3
BLOCK_BYTES = 2 * LAYERS * PIECE_BYTES
STEPS = 700
#: Most jobs that one engine has under way.
MOST_JOBS = 30


def content(key: bytes) -> bytes:
    """What every engine saves under a key."""
    return random.Random(key).randbytes(BLOCK_BYTES)


class BusyEngine:
    """Saves and loads whatever chance says, and looks at every byte that it may."""

    def __init__(self, port, rng: random.Random) -> None:
        self.port = port
        self._rng = rng
        self._memory = Memory(BLOCKS, LAYERS, PIECE_BYTES)
        self._free = list(range(BLOCKS))
        self.jobs: dict[int, tuple[tuple[bytes, ...], list[int]]] = {}
        self._ids = 0
        #: What was put into blocks whose job is over: it stays there.
        self._marks: dict[int, bytes] = {}
        self._held: list[int] = []
        self.counts: collections.Counter[str] = collections.Counter()

    def step(self) -> None:
        rng = self._rng
        self.look()
        if rng.random() < 0.6 and len(self.jobs) < MOST_JOBS and len(self._free) >= 16:
            self._begin()
        if rng.random() < 0.2:
            self._ids += 1
            keys = tuple(b"%d-%d" % (rng.randrange(10), at) for at in range(12))
            self.port.lookup(Lookup(self._ids, (Question((SCOPE,), keys),), 500))
            if rng.random() < 0.3:
                self.port.release(self._ids)
        if self._held and rng.random() < 0.3:
            self.port.release(self._held.pop())
        if rng.random() < 0.02:
            self.port.fence()

    def works(self) -> bool:
        """Something was saved and something loaded; on the way there."""
        self.step()
        return bool(self.counts["stored"] and self.counts["loaded"])

    def look(self) -> None:
        for event in self.port.poll():
            if isinstance(event, SaveDone | LoadDone):
                self._ended(event)
            elif isinstance(event, Answer) and not event.error:
                self._held.append(event.lookup_id)

    def check_untouched(self) -> None:
        for block, mark in self._marks.items():
            assert self._memory.block(block) == mark, "a block was touched after its job was reported"

    def _begin(self) -> None:
        rng = self._rng
        first, name = rng.randrange(8), rng.randrange(10)
        keys = tuple(b"%d-%d" % (name, at) for at in range(first, first + rng.randint(1, 16)))
        rng.shuffle(self._free)
        blocks = [self._free.pop() for _ in keys]
        self.check_untouched()
        for block in blocks:
            self._marks.pop(block, None)
        self._ids += 1
        self.jobs[self._ids] = (keys, blocks)
        timeout_ms = rng.choice([5, 50, 1_000, 20_000])
        if rng.random() < 0.5:
            for key, block in zip(keys, blocks, strict=True):
                self._put(block, content(key))
            self.port.save(SaveJob(self._ids, (self._memory.group(keys, blocks),), timeout_ms))
        else:
            self.port.load(LoadJob(self._ids, (self._memory.group(keys, blocks),), timeout_ms))

    def _ended(self, event: SaveDone | LoadDone) -> None:
        assert event.job_id in self.jobs, "a job is reported twice"
        keys, blocks = self.jobs.pop(event.job_id)
        if isinstance(event, SaveDone):
            assert event.stored + event.existed + event.dropped == len(keys)
            self.counts["stored"] += event.stored
        elif event.loaded:
            self.counts["loaded"] += len(keys)
            for key, block in zip(keys, blocks, strict=True):
                assert self._memory.block(block) == content(key), "other bytes than were saved"
        for block in blocks:
            self._marks[block] = os.urandom(BLOCK_BYTES)
            self._put(block, self._marks[block])
        self._free += blocks

    def _put(self, block: int, data: bytes) -> None:
        for number, run in enumerate(self._memory.runs):
            piece = data[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
            ctypes.memmove(run.base + block * run.stride, piece, run.length)


@pytest.mark.slow
@pytest.mark.parametrize(("place", "seed"), [("node", 1), ("node", 2), ("embedded", 3)])
def test_p10_whatever_happens_jobs_are_reported_once_and_nothing_lands_late(
    make_pool, tmp_path, monkeypatch, place, seed
):
    monkeypatch.setattr(rank_module, "PING_S", 0.1)
    rng = random.Random(seed)
    pool = make_pool().start()
    node = NodeProcess(str(tmp_path / "n.engines"), pool.address) if place == "node" else None
    if node is not None:
        ports = [AgentPort(f"e{at}", socket=node.path, ring_bytes=64 << 10) for at in range(2)]
    else:
        ports = [EmbeddedPort(pool.access(f"e{at}")) for at in range(2)]
    engines = [BusyEngine(port, rng) for port in ports]
    until(lambda: all(port.connected for port in ports))
    stopped = 0
    for step in range(STEPS):
        for engine in engines:
            engine.step()
        time.sleep(0.001)  # other threads and processes have their turn; nothing is waited for
        if step == STEPS // 2:
            pool.kill_master()
            pool.start()
        if node is None:
            continue
        if stopped:
            stopped -= 1
            if not stopped:
                node.signal(signal.SIGCONT)
        elif rng.random() < 0.005:
            node.signal(signal.SIGSTOP)
            stopped = rng.choice([20, 400])
        elif rng.random() < 0.005:
            node.kill()
            node.start()
    if node is not None:
        node.signal(signal.SIGCONT)

    def over() -> bool:
        for engine in engines:
            engine.look()
        return not any(engine.jobs for engine in engines)

    until(over, "a job has no end")
    for engine in engines:
        engine.counts.clear()
        until(engine.works, "it does not work any more")
    until(over, "a job has no end")
    for engine in engines:
        engine.check_untouched()
        engine.port.close(0.0)
    if node is not None:
        node.kill()
