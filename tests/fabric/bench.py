"""What the conformance suite runs on: a backend (how to build one fabric), a bench (an owner and its peers), and ways
to hold a transfer in the middle.

`BACKENDS` is the one list of all fabrics. A further fabric joins the suite by describing itself as a `Backend` there;
`run_on` knows where it lives, on a real event loop or in a simulated world.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pykvpool.fabric.base import FabricClient, FabricServer, Peer, Read, Write
from pykvpool.fabric.inproc import InprocRegistry
from pykvpool.fabric.rdma.settings import DEFAULT_SETTINGS, RdmaSettings
from pykvpool.fabric.registry import ClientSettings, ServerSettings, build_client, build_server
from pykvpool.fabric.verbs import DeviceName
from pykvpool.memory.segment import MemorySegment
from pykvpool.model.ids import NodeName, PutId, SegmentId
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import Runtime, ThreadOffload, real_runtime
from tests.fabric.fake_verbs import FakeVerbs
from tests.fabric.relay import Relay

SEGMENT_BYTES = 16 * 1024 * 1024
#: Large enough that no kernel buffers could hold it: a transfer of it has a middle.
BIG_BYTES = 12 * 1024 * 1024
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Backend:
    """One fabric as the suite sees it."""

    name: str
    scheme: str
    token: str | None = None
    #: Offers views of the segment itself.
    zero_copy: bool = False
    #: The owner's CPU sees every operation, so it can judge put_ids.
    owner_is_asked: bool = True
    #: Bytes travel through something that can be held by a relay; else copies run in offload threads.
    on_the_wire: bool = False
    #: Ways that the operations of a batch are dealt out over. With more than one, the last may begin before the first.
    lanes: int = 1


BACKENDS = (
    Backend("inproc", "inproc", zero_copy=True),
    Backend("shm", "shm", zero_copy=True, owner_is_asked=False),
    Backend("shm+token", "shm", token="open sesame", zero_copy=True, owner_is_asked=False),
    Backend("tcp", "tcp", on_the_wire=True),
    Backend("tcp+token", "tcp", token="open sesame", on_the_wire=True),
    Backend("rdma", "rdma", owner_is_asked=False, on_the_wire=True),
    Backend("rdma+token", "rdma", token="open sesame", owner_is_asked=False, on_the_wire=True),
    Backend("sim", "sim", owner_is_asked=False, on_the_wire=True),
    Backend("sim two lanes", "sim", owner_is_asked=False, on_the_wire=True, lanes=2),
    Backend("sim one machine", "sim", zero_copy=True, owner_is_asked=False, on_the_wire=True),
)


class Hold(Protocol):
    """A transfer stopped in its middle."""

    async def reached(self) -> None:
        """Wait until it is there."""

    def release(self) -> None:
        """Let it go on."""

    async def quiet(self) -> None:
        """Wait until whatever was released has arrived wherever it goes."""


class HeldOffload:
    """Offload threads that wait, before they work, until they are released: a copy that cannot be hurried."""

    def __init__(self) -> None:
        self._inner = ThreadOffload(2)
        self._gate = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._entered = asyncio.Event()

    async def run(self, function: Callable[..., Any], /, *args: object) -> Any:
        def held() -> Any:
            self._loop.call_soon_threadsafe(self._entered.set)
            self._gate.wait()
            return function(*args)

        return await self._inner.run(held)

    def close(self) -> None:
        self._gate.set()
        self._inner.close()

    async def reached(self) -> None:
        await self._entered.wait()

    def release(self) -> None:
        self._gate.set()

    async def quiet(self) -> None:
        await self._inner.run(lambda: None)


class Card(Protocol):
    """A device that can be held (see `fake_verbs`)."""

    under_way: int

    def hold(self) -> None: ...

    def step(self, count: int) -> int: ...

    def release(self) -> None: ...


@runtime_checkable
class Holdable(Protocol):
    """A `Verbs` whose devices can be held."""

    def devices(self) -> list[DeviceName]: ...

    def __getitem__(self, name: str) -> Card: ...


class HeldCards:
    """Cards that take requests and carry some of them out, until they are released."""

    #: Carried out before the rest is held: so that a transfer has a middle.
    STEPS = 3

    def __init__(self, verbs: Holdable) -> None:
        self._cards = [verbs[device.name] for device in verbs.devices()]
        for card in self._cards:
            card.hold()

    async def reached(self) -> None:
        while not sum(card.under_way for card in self._cards):
            await asyncio.sleep(0)
        for card in self._cards:
            card.step(self.STEPS)

    def release(self) -> None:
        for card in self._cards:
            card.release()

    async def quiet(self) -> None:
        """Nothing is under way beside what the cards hold."""
        self.release()


@dataclass
class Bench:
    """One owner with one mounted segment, and the peers that a test asks for. Everything is closed at the end."""

    backend: Backend
    server: FabricServer
    memory: MemorySegment
    segment: SegmentDescriptor
    runtime: Runtime
    inproc: InprocRegistry
    stack: contextlib.AsyncExitStack
    rdma: RdmaSettings = DEFAULT_SETTINGS
    _names: int = 0
    _mounts: int = 1
    extra: dict[str, object] = field(default_factory=dict)

    def client(self, peer: Peer | None = None, runtime: Runtime | None = None) -> FabricClient:
        self._names += 1
        settings = ClientSettings(
            peer or Peer(f"peer-{self._names}", self._names),
            runtime or self.runtime,
            token=self.backend.token,
            inproc=self.inproc,
            rdma=self.rdma,
        )
        client = build_client(self.backend.scheme, settings)
        self.stack.push_async_callback(client.close)
        return client

    def mount(self, size_bytes: int = SEGMENT_BYTES) -> tuple[MemorySegment, SegmentDescriptor]:
        """Another mount by the same owner."""
        self._mounts += 1
        return self._mount(size_bytes, self._mounts)

    def _mount(self, size_bytes: int, number: int) -> tuple[MemorySegment, SegmentDescriptor]:
        memory = MemorySegment(size_bytes, self.runtime)
        self.stack.callback(memory.close)
        return memory, SegmentDescriptor(
            SegmentId(number), memory.generation, NodeName("owner"), memory.size_bytes, (self.server.export(memory),)
        )

    async def held_client(self, peer: Peer) -> tuple[FabricClient, SegmentDescriptor, Hold]:
        """A peer whose next big transfer stops in the middle, and the descriptor it must use."""
        if self.backend.scheme == "rdma":
            client = self.client(peer)
            assert isinstance(self.rdma.verbs, Holdable)
            # Connected beforehand: what is held is the transfer.
            await client.read([self.read(0, bytearray(1))], TIMEOUT_S)
            return client, self.segment, HeldCards(self.rdma.verbs)
        if self.backend.on_the_wire:
            relay = await Relay.open(self.segment.endpoints[0], hold_after_bytes=BIG_BYTES // 4)
            self.stack.push_async_callback(relay.close)
            return self.client(peer), replace_endpoint(self.segment, relay.endpoint), relay
        offload = HeldOffload()
        self.stack.callback(offload.close)
        return self.client(peer, replace(self.runtime, offload=offload)), self.segment, offload

    def write(self, offset: int, data: bytes | bytearray, put_id: int = 1, **changes: Any) -> Write:
        return Write(
            changes.pop("segment", self.segment), offset, len(data), [memoryview(data)], PutId(put_id), **changes
        )

    def read(self, offset: int, into: bytearray, **changes: Any) -> Read:
        return Read(changes.pop("segment", self.segment), offset, len(into), [memoryview(into)], **changes)


def jump(seconds: float) -> None:
    """Put the loop's clock forward: deadlines pass without anybody waiting for them."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]


def replace_endpoint(segment: SegmentDescriptor, endpoint: str) -> SegmentDescriptor:
    return SegmentDescriptor(segment.segment, segment.generation, segment.node, segment.size_bytes, (endpoint,))


@contextlib.asynccontextmanager
async def open_bench(
    backend: Backend, folder: Path, rdma: RdmaSettings | None = None, owner_rdma: RdmaSettings | None = None
) -> AsyncIterator[Bench]:
    """With fake cards for rdma, unless told otherwise: `rdma` for the peers, `owner_rdma` for the owner."""
    runtime = real_runtime()
    inproc = InprocRegistry()
    rdma = rdma or RdmaSettings(verbs=FakeVerbs("card0", "card1"))
    owner_rdma = owner_rdma or rdma
    settings = ServerSettings(
        runtime, token=backend.token, shm_path=str(folder / "data.sock"), inproc=inproc, cluster="test", rdma=owner_rdma
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(runtime.offload.close)
        server = build_server(backend.scheme, settings)
        await server.start()
        memory = MemorySegment(SEGMENT_BYTES, runtime)
        stack.callback(memory.close)
        stack.push_async_callback(server.close)
        segment = SegmentDescriptor(
            SegmentId(1), memory.generation, NodeName("owner"), memory.size_bytes, (server.export(memory),)
        )
        yield Bench(backend, server, memory, segment, runtime, inproc, stack, rdma)


def run_on(backend: Backend, folder: Path, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario of the suite where the fabric lives."""
    if backend.scheme == "sim":
        from tests.sim.fabric_bench import run_in_a_world

        run_in_a_world(backend, scenario)
        return

    async def really() -> None:
        async with open_bench(backend, folder) as bench:
            await scenario(bench)

    asyncio.run(really())
