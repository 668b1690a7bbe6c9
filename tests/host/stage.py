"""A real pool on a thread of its own, so that ports can be used as engines use them: without a loop.

`Memory` stands for an engine's KV tensors: a few layers, each with a piece of every block, K and V apart.
"""

from __future__ import annotations

import ctypes
import random
import time
from pathlib import Path

from pykvpool.client.sync import LoopThread
from pykvpool.core.config import CoreConfig
from pykvpool.core.master import MasterCore
from pykvpool.fabric.registry import ServerSettings, build_servers
from pykvpool.host.access import PoolAccess
from pykvpool.host.agent.server import AgentServer
from pykvpool.host.port import BlockGroup, LoadJob, Lookup, Question, Run, SaveJob
from pykvpool.master import MasterServer
from pykvpool.model.keys import Scope
from pykvpool.node import Node, NodeSettings
from pykvpool.runtime import real_runtime

MIB = 1 << 20
#: Bounds every wait; nothing here takes a hundredth of it.
PATIENCE_S = 20.0
SCOPE = Scope("tests", "model", "tp0", 0)
OTHER_RANK = Scope("tests", "model", "tp1", 0)
OTHER_MODEL = Scope("tests", "another", "tp0", 0)

#: Every tensor made: groups name memory by address alone, and tests make `Memory` in passing.
_KEPT: list[ctypes.Array] = []


def until(condition, what: str = "") -> None:
    """Wait until `condition()` is true."""
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit, what or "it did not happen"
        time.sleep(0.002)


class Pool:
    """A master and one node; either can be killed and come back."""

    def __init__(self, directory: Path, fabrics: tuple[str, ...] = ("tcp",), size_bytes: int = 16 * MIB) -> None:
        self._directory = directory
        self._fabrics = fabrics
        self._size_bytes = size_bytes
        self._thread = LoopThread("pool of a test")
        self.runtime = real_runtime()
        self.address = "tcp://127.0.0.1:0"
        self.master: MasterServer | None = None
        self.node: Node | None = None
        self.core: MasterCore | None = None
        self._lives = 0
        self._agent: AgentServer | None = None

    def start(self, config: CoreConfig | None = None, nodes: int = 1) -> Pool:
        async def begin() -> None:
            self._lives += 1
            self.core = MasterCore(config or CoreConfig(), epoch=self._lives)
            self.master = MasterServer(self.core, [self.address], self.runtime)
            await self.master.start()
            self.address = self.master.addresses[0]
            if nodes and self.node is None:
                shm = str(self._directory / "node.sock")
                settings = ServerSettings(self.runtime, tcp_listen="127.0.0.1:0", shm_path=shm)
                servers = build_servers(self._fabrics, settings)
                self.node = Node(NodeSettings("n0", (self.address,), self._size_bytes), servers, self.runtime)
                await self.node.start()

        self._thread.run(begin())
        return self

    def agent(self, path: str = "n0.engines", **options) -> AgentServer:
        """The node's end for engines, started once."""
        if self._agent is None:
            access = self.access("n0-engines", **options)
            self._agent = AgentServer(str(self._directory / path), "n0", access, self.runtime)
            self._thread.run(self._agent.start())
        return self._agent

    def end_agent(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            self._thread.run(agent.close())

    def kill_master(self) -> None:
        """As a process that dies: connections break, nothing is said."""
        master, self.master = self.master, None
        self._thread.run(master.close())

    def on_loop(self, function, *args):
        async def call():
            return function(*args)

        return self._thread.run(call())

    def access(self, name: str = "engine", **options) -> PoolAccess:
        return PoolAccess((self.address,), name, fabrics=self._fabrics, connect_timeout_s=1.0, **options)

    def objects(self) -> int:
        """How many are readable."""
        return self.on_loop(lambda: sum(map(len, self.core._context.state.catalog.index)))

    def leases(self) -> dict[int, int]:
        """When each lease ends, by its id."""
        leases = self.core._context.leases
        return self.on_loop(lambda: {lease.id: lease.expires_at for lease in leases.by_id.values()})

    def stop(self) -> None:
        self.end_agent()

        async def end() -> None:
            if self.node is not None:
                await self.node.stop()
            if self.master is not None:
                await self.master.close()
                self.core.validate()

        self._thread.run(end())
        self._thread.stop()
        self.runtime.offload.close()


class Memory:
    """`layers` tensors of (blocks, 2, piece bytes): a block has two pieces in each."""

    def __init__(self, blocks: int = 64, layers: int = 3, piece_bytes: int = 256, seed: int = 0) -> None:
        self.blocks = blocks
        self.layers = layers
        self.piece_bytes = piece_bytes
        self._seed = seed
        self._tensors = [ctypes.create_string_buffer(blocks * 2 * piece_bytes) for _ in range(layers)]
        _KEPT.extend(self._tensors)

    @property
    def runs(self) -> tuple[Run, ...]:
        stride = 2 * self.piece_bytes
        return tuple(
            Run(ctypes.addressof(tensor) + half * self.piece_bytes, stride, self.piece_bytes)
            for half in (0, 1)
            for tensor in self._tensors
        )

    @property
    def block_bytes(self) -> int:
        return 2 * self.layers * self.piece_bytes

    def fill(self) -> Memory:
        """Random bytes everywhere."""
        for number, tensor in enumerate(self._tensors):
            tensor.raw = random.Random(1_000 * self._seed + number).randbytes(len(tensor))
        return self

    def block(self, number: int) -> bytes:
        """The object of a block: its runs one after another."""
        return b"".join(ctypes.string_at(run.base + number * run.stride, run.length) for run in self.runs)

    def group(self, keys, block_ids, scope: Scope = SCOPE) -> BlockGroup:
        parents = (None, *keys[:-1]) if keys else ()
        return BlockGroup(scope, tuple(keys), tuple(block_ids), self.runs, parents)


def chain(count: int, name: str = "a") -> tuple[bytes, ...]:
    return tuple(f"{name}-{number:05}".encode() for number in range(count))


class Engine:
    """What an engine does with a port: jobs go in, it polls."""

    def __init__(self, port) -> None:
        self.port = port
        self._events: list = []
        self._last_id = 0

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def connected(self) -> Engine:
        until(lambda: self.port.connected, "the port did not connect")
        return self

    def begin_save(self, *groups: BlockGroup, timeout_ms: int = 15_000) -> int:
        job_id = self.next_id()
        self.port.save(SaveJob(job_id, groups, timeout_ms))
        return job_id

    def begin_load(self, *groups: BlockGroup, timeout_ms: int = 15_000) -> int:
        job_id = self.next_id()
        self.port.load(LoadJob(job_id, groups, timeout_ms))
        return job_id

    def begin_lookup(self, *questions: Question, timeout_ms: int = 15_000) -> int:
        lookup_id = self.next_id()
        self.port.lookup(Lookup(lookup_id, questions, timeout_ms))
        return lookup_id

    def save(self, *groups: BlockGroup, timeout_ms: int = 15_000):
        return self.end_of(self.begin_save(*groups, timeout_ms=timeout_ms))

    def load(self, *groups: BlockGroup, timeout_ms: int = 15_000):
        return self.end_of(self.begin_load(*groups, timeout_ms=timeout_ms))

    def lookup(self, *questions: Question, timeout_ms: int = 15_000):
        return self.end_of(self.begin_lookup(*questions, timeout_ms=timeout_ms))

    def look(self) -> list:
        """Everything that polling brought and nobody took yet."""
        self._events += self.port.poll()
        return self._events

    def end_of(self, ident: int):
        """The one event about a job or lookup; waits for it."""
        return self.take(lambda event: ident in (getattr(event, "job_id", 0), getattr(event, "lookup_id", 0)))

    def take(self, wanted):
        until(lambda: any(map(wanted, self.look())), f"no such event among {self._events}")
        event = next(filter(wanted, self._events))
        self._events.remove(event)
        return event
