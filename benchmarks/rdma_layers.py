"""Where does the rest go, between what a device can do over RDMA and what the pool moves? Layer by layer, in turn.

    C        ib_write_bw, ib_read_bw (package perftest)
    seam     one queue pair, posted to and polled from Python through `pykvpool.fabric.verbs`
    fabric   `rdma://`, batches of 16 from registered memory, without checksums
    summed   the same with checksums: what a put and a get of the pool cost, but for the master

`pykvpool bench --fabric rdma` measures the whole, master included. All layers move the same sizes between the same two
devices, within this process but for C; rounds are interleaved, figures are medians over the rounds.

    python benchmarks/rdma_layers.py --device rxeA --owner-device rxeB [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import itertools
import json
import mmap
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, closing

from pykvpool.cli.bench.perftest import Perftest
from pykvpool.fabric.base import Peer, Read, Write
from pykvpool.fabric.rdma import gids
from pykvpool.fabric.rdma.client import RdmaClient
from pykvpool.fabric.rdma.server import RdmaServer
from pykvpool.fabric.rdma.settings import RdmaSettings
from pykvpool.fabric.verbs import (
    Access,
    Opcode,
    Path,
    Piece,
    QueuePairLimits,
    RemoteQueuePair,
    Retries,
    Status,
    Verbs,
    WorkRequest,
)
from pykvpool.fabric.verbs.load import load
from pykvpool.memory.buffers import BufferRegistry
from pykvpool.memory.segment import MemorySegment
from pykvpool.model.ids import NodeName, PutId, SegmentId
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import real_runtime

KIB, MIB = 1024, 1024 * 1024
SIZES = (64 * KIB, MIB)
#: Operations of a batch, and requests that the seam keeps under way.
BATCH = 16
#: Moved for one figure, at least a batch: a second or so on an emulated processor.
MOVED_BYTES = 32 * MIB
SEGMENT_BYTES = BATCH * MIB
TIMEOUT_S = 120.0
PSN = 77
ALL = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE
WAYS = ("write", "read")


class SeamEnd:
    """One device with a registered stretch of memory and a queue pair. Everything is closed with `stack`."""

    def __init__(self, verbs: Verbs, device: str, stack: ExitStack) -> None:
        self._memory = mmap.mmap(-1, SEGMENT_BYTES)
        #: Keeps the memory where it is.
        self._hold = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(self._hold)
        context = stack.enter_context(closing(verbs.open(device)))
        self.completions = stack.enter_context(closing(context.completion_queue(2 * BATCH)))
        domain = stack.enter_context(closing(context.protection_domain()))
        self.region = stack.enter_context(closing(domain.register(self.address, SEGMENT_BYTES, ALL)))
        self.pair = stack.enter_context(closing(domain.queue_pair(self.completions, QueuePairLimits(BATCH, 1))))
        self._port = context.port(1)
        self._gid = gids.usable(self._port.gids)[0]
        self._depth = min(16, context.limits().max_qp_read_depth)

    @property
    def described(self) -> RemoteQueuePair:
        port = self._port
        return RemoteQueuePair(self.pair.number, PSN, self._gid.address, port.lid, port.active_mtu_bytes)

    def connect(self, other: RemoteQueuePair) -> None:
        path = Path(self._port.number, self._gid.index, self._port.active_mtu_bytes, read_depth=self._depth)
        self.pair.to_init(self._port.number, Access.REMOTE_READ | Access.REMOTE_WRITE)
        self.pair.to_ready_to_receive(other, path)
        self.pair.to_ready_to_send(PSN, path, Retries())


class Seam:
    """One queue pair from Python, with nothing above it."""

    def __init__(self, verbs: Verbs, device: str, owner_device: str, stack: ExitStack) -> None:
        self._near = SeamEnd(verbs, device, stack)
        self._far = SeamEnd(verbs, owner_device, stack)
        self._near.connect(self._far.described)
        self._far.connect(self._near.described)

    async def move(self, way: str, size: int) -> None:
        """One figure's worth, `BATCH` requests under way at a time."""
        opcode = Opcode.WRITE if way == "write" else Opcode.READ
        near, far, completions = self._near, self._far, self._near.completions
        left = MOVED_BYTES // size
        under_way = 0
        woken = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(completions.fd, woken.set)
        numbers = itertools.count()
        try:
            while left or under_way:
                requests = []
                while left and under_way < BATCH:
                    number = next(numbers)
                    offset = number % BATCH * size
                    piece = Piece(near.address + offset, size, near.region.lkey)
                    requests.append(WorkRequest(number, opcode, (piece,), far.address + offset, far.region.rkey))
                    left -= 1
                    under_way += 1
                near.pair.post(requests)
                completions.take_event()
                woken.clear()
                completions.arm()
                while not (done := completions.poll(BATCH)):
                    await woken.wait()
                    completions.take_event()
                    woken.clear()
                    completions.arm()
                if any(entry.status is not Status.SUCCESS for entry in done):
                    raise SystemExit(f"a request failed: {done}")
                under_way -= len(done)
        finally:
            loop.remove_reader(completions.fd)


class FabricLayer:
    """`rdma://` between two ends in this process."""

    def __init__(self, client: RdmaClient, segment: SegmentDescriptor, memory: memoryview) -> None:
        self._client = client
        self._segment = segment
        self._memory = memory
        self._puts = itertools.count(1)

    @classmethod
    async def open(cls, device: str, owner_device: str, stack: AsyncExitStack) -> FabricLayer:
        runtime = real_runtime()
        stack.callback(runtime.offload.close)
        server = RdmaServer(runtime, settings=RdmaSettings((owner_device,)))
        await server.start()
        stack.push_async_callback(server.close)
        mount = MemorySegment(SEGMENT_BYTES, runtime, prefault=True)
        stack.callback(mount.close)
        endpoint = server.export(mount)
        segment = SegmentDescriptor(SegmentId(1), mount.generation, NodeName("owner"), mount.size_bytes, (endpoint,))
        buffers = BufferRegistry()
        memory = memoryview(mmap.mmap(-1, SEGMENT_BYTES))
        buffers.register(memory)
        client = RdmaClient(Peer("bench", 1), runtime, settings=RdmaSettings((device,)), buffers=buffers)
        stack.push_async_callback(client.close)
        return cls(client, segment, memory)

    async def move(self, way: str, size: int, *, summed: bool) -> None:
        for _ in range(max(1, MOVED_BYTES // (size * BATCH))):
            parts = [(n * size, [self._memory[n * size :][:size]]) for n in range(BATCH)]
            if way == "write":
                put = PutId(next(self._puts))
                writes = [Write(self._segment, at, size, pieces, put, summed) for at, pieces in parts]
                outcomes = await self._client.write(writes, TIMEOUT_S)
            else:
                reads = [Read(self._segment, at, size, pieces, summed) for at, pieces in parts]
                outcomes = await self._client.read(reads, TIMEOUT_S)
            for outcome in outcomes:
                if outcome.error is not None:
                    raise outcome.error


async def timed(move: Callable[[], Awaitable[None]]) -> float:
    """Bytes per second."""
    started = time.perf_counter()
    await move()
    return MOVED_BYTES / (time.perf_counter() - started)


async def measure(device: str, owner_device: str, rounds: int) -> dict[str, float]:
    """Median bytes per second by ``layer way size``."""
    rates: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        tools = Perftest.between(device, owner_device)
        seam = Seam(load(), device, owner_device, stack.enter_context(ExitStack()))
        fabric = await FabricLayer.open(device, owner_device, stack)
        for turn in range(rounds + 1):
            print(f"round {turn} of {rounds}" + ("" if turn else " (to warm up)"), file=sys.stderr, flush=True)
            for size, way in itertools.product(SIZES, WAYS):
                found = {
                    "C": await tools.rate(f"ib_{way}_bw", size),
                    "seam": await timed(lambda way=way, size=size: seam.move(way, size)),
                    "fabric": await timed(lambda way=way, size=size: fabric.move(way, size, summed=False)),
                    "summed": await timed(lambda way=way, size=size: fabric.move(way, size, summed=True)),
                }
                if turn:
                    for layer, rate in found.items():
                        rates.setdefault(f"{layer} {way} {size}", []).append(rate)
    return {name: statistics.median(values) for name, values in rates.items()}


def show(figures: dict[str, float]) -> None:
    print(f"{'':24}" + "".join(f"{layer:>20}" for layer in ("C", "seam", "fabric", "summed")))
    for size, way in itertools.product(SIZES, WAYS):
        raw = figures[f"C {way} {size}"]
        cells = [
            f"{figures[f'{layer} {way} {size}'] / MIB:9.1f} MiB/s {figures[f'{layer} {way} {size}'] / raw:.2f}"
            for layer in ("C", "seam", "fabric", "summed")
        ]
        print(f"{way + ' of ' + str(size // KIB) + ' KiB':24}" + "".join(f"{cell:>20}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", required=True, help="the client's RDMA device")
    parser.add_argument("--owner-device", help="the owner's; default: the same")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.device, options.owner_device or options.device, options.rounds))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)


if __name__ == "__main__":
    main()
