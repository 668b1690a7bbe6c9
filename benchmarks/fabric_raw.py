"""How close do the fabrics come to what this machine can do? Raw figures and ours, taken in turn in one run.

Raw: memcpy (`ctypes.memmove` of large buffers), and asyncio's `BufferedProtocol` receiving over loopback from another
process. Ours: batches of 16 x 1 MiB between two processes over tcp and shm, both directions, checksums on. Rounds are
interleaved, so that a machine that slows down slows all of them; figures are medians over the rounds.

    python benchmarks/fabric_raw.py [--rounds 7] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from pykvpool.cli.bench.raw import Memcpy, receive_rate, send
from pykvpool.fabric.base import FabricClient, FabricServer, Peer, Read, Write
from pykvpool.fabric.registry import ClientSettings, ServerSettings, build_client, build_server
from pykvpool.memory.segment import MemorySegment
from pykvpool.model.ids import NodeName, PutId, SegmentId
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.runtime import real_runtime

MIB = 1024 * 1024
#: The batch that is measured.
OPERATIONS = 16
OPERATION_BYTES = MIB
#: Batches per round and figure: about 50 ms of work.
BATCHES = 12
MEMCPY_SECONDS = 0.03
SEGMENT_BYTES = 64 * MIB
TIMEOUT_S = 60.0
SCHEMES = ("shm", "tcp")


@dataclass(frozen=True, slots=True)
class Figure:
    """GB/s (10^9) by round."""

    name: str
    rates: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


def owner(pipe: Connection, folder: str) -> None:
    """The other process: exports one segment over every scheme, and sends raw bytes when asked."""
    asyncio.run(_own(pipe, folder))


async def _own(pipe: Connection, folder: str) -> None:
    runtime = real_runtime()
    memory = MemorySegment(SEGMENT_BYTES, runtime, prefault=True)
    settings = ServerSettings(runtime=runtime, shm_path=f"{folder}/data.sock")
    servers: list[FabricServer] = [build_server(scheme, settings) for scheme in SCHEMES]
    for server in servers:
        await server.start()
    endpoints = tuple(server.export(memory) for server in servers)
    segment = SegmentDescriptor(SegmentId(1), memory.generation, NodeName("owner"), memory.size_bytes, endpoints)
    pipe.send(segment)
    loop = asyncio.get_running_loop()
    while port := await loop.run_in_executor(None, pipe.recv):
        await loop.run_in_executor(None, send, port)
    for server in servers:
        await server.close()
    memory.close()


async def measure_fabric(client: FabricClient, segment: SegmentDescriptor, first_put: int) -> tuple[float, float]:
    """GB/s of writing and of reading `BATCHES` batches, checksums on; the bytes read are compared."""
    sources = [memoryview(bytearray([index + 1]) * OPERATION_BYTES) for index in range(OPERATIONS)]
    targets = [memoryview(bytearray(b"\xff") * OPERATION_BYTES) for _ in range(OPERATIONS)]

    def writes(batch: int) -> list[Write]:
        put_id = PutId(first_put + batch)
        return [
            Write(segment, index * OPERATION_BYTES, OPERATION_BYTES, [source], put_id)
            for index, source in enumerate(sources)
        ]

    def reads(_batch: int) -> list[Read]:
        return [
            Read(segment, index * OPERATION_BYTES, OPERATION_BYTES, [target]) for index, target in enumerate(targets)
        ]

    async def timed(move: Callable[[int], Awaitable[None]]) -> float:
        started = time.perf_counter()
        for batch in range(BATCHES):
            await move(batch)
        return BATCHES * OPERATIONS * OPERATION_BYTES / (time.perf_counter() - started) / 1e9

    async def write(batch: int) -> None:
        for outcome in await client.write(writes(batch), TIMEOUT_S):
            if outcome.error is not None:
                raise outcome.error

    async def read(batch: int) -> None:
        for outcome in await client.read(reads(batch), TIMEOUT_S):
            if outcome.error is not None:
                raise outcome.error

    written = await timed(write)
    read_rate = await timed(read)
    if sources != targets:
        raise SystemExit("the bytes that came back are not the bytes that were written")
    return written, read_rate


async def measure(pipe: Connection, segment: SegmentDescriptor, rounds: int) -> list[Figure]:
    runtime = real_runtime()
    settings = ClientSettings(peer=Peer("bench", runtime.new_incarnation()), runtime=runtime)
    clients = {scheme: build_client(scheme, settings) for scheme in SCHEMES}
    names = ["memcpy", "BufferedProtocol"] + [f"{scheme} {way}" for scheme in SCHEMES for way in ("write", "read")]
    rates: dict[str, list[float]] = {name: [] for name in names}
    memcpy = Memcpy()
    for turn in range(rounds + 1):
        found = {"memcpy": memcpy.rate(MEMCPY_SECONDS) / 1e9, "BufferedProtocol": await receive_rate(pipe.send) / 1e9}
        for scheme, client in clients.items():
            written, read = await measure_fabric(client, segment, turn * BATCHES + 1)
            found[f"{scheme} write"] = written
            found[f"{scheme} read"] = read
        if turn:  # the first round only warms up
            for name, rate in found.items():
                rates[name].append(rate)
    for client in clients.values():
        await client.close()
    return [Figure(name, rates[name]) for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print data only")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=owner, args=(theirs, folder))
        process.start()
        try:
            figures = asyncio.run(measure(ours, ours.recv(), arguments.rounds))
        finally:
            ours.send(0)
            process.join()
    medians = {figure.name: figure.median for figure in figures}
    raw = {"shm": medians["memcpy"], "tcp": medians["BufferedProtocol"]}
    if arguments.json:
        json.dump({figure.name: figure.rates for figure in figures}, sys.stdout)
        return
    for figure in figures:
        base = raw.get(figure.name.split()[0])
        ratio = "" if base is None else f"  {figure.median / base:4.2f} x raw"
        print(f"{figure.name:18} {figure.median:6.2f} GB/s{ratio}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
