"""A pool of 512 MiB, and several client processes that together write and read four times as much, with default leases.

    python benchmarks/full_pool.py [--clients 4] [--fabric shm] [--pool-mib 512] [--total-mib 2048] [--batch 16]

Each client writes its blocks of 1 MiB in batches and reads each batch back. A full pool makes writers wait, it does not
fail them: the run ends with exit code 1 if any put failed or any byte was wrong. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time

from pykvpool.client import Client, PutItem
from pykvpool.errors import KeyNotFound, PoolError

BLOCK_BYTES = 1 << 20


def block(client: int, number: int) -> bytes:
    """Bytes that say whose they are."""
    return (client << 32 | number).to_bytes(8, "little") * (BLOCK_BYTES // 8)


async def work(master: str, fabric: str, number: int, blocks: int, batch: int) -> dict[str, object]:
    """One client: write a batch, read it back, go on."""
    counts = {"puts": 0, "put_errors": 0, "hits": 0, "evicted_before_read": 0, "wrong": 0}
    errors: list[str] = []
    async with await Client.connect(master, name=f"writer-{number}", fabrics=(fabric,)) as client:
        buffers = [bytearray(BLOCK_BYTES) for _ in range(batch)]
        for start in range(0, blocks, batch):
            numbers = range(start, min(start + batch, blocks))
            keys = [f"{number}/{i}" for i in numbers]
            for result in await client.put_batch(
                [PutItem(k, block(number, i)) for k, i in zip(keys, numbers, strict=True)]
            ):
                if isinstance(result, PoolError):
                    counts["put_errors"] += 1
                    errors.append(str(result))
                else:
                    counts["puts"] += 1
            read = await client.get_into_batch(keys, buffers[: len(keys)])
            for i, result, buffer in zip(numbers, read, buffers[: len(keys)], strict=True):
                if isinstance(result, KeyNotFound):
                    counts["evicted_before_read"] += 1
                elif isinstance(result, PoolError):
                    errors.append(str(result))
                elif buffer == block(number, i):
                    counts["hits"] += 1
                else:
                    counts["wrong"] += 1
        statistics = client.statistics()
    return {**counts, "waited": statistics.puts_waited, "retried": statistics.put_retries, "errors": errors[:3]}


def run(arguments: argparse.Namespace) -> int:
    """Start the pool and the clients; add up what they say."""
    children: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        child = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(child)
        return child

    def announced(child: subprocess.Popen[str]) -> dict[str, object]:
        assert child.stdout is not None
        return json.loads(child.stdout.readline())

    try:
        master = start("-m", "pykvpool", "master", "--supervised", "--listen", "tcp://127.0.0.1:0")
        [address] = announced(master)["addresses"]
        node = start("-m", "pykvpool", "node", "--supervised", "--master", address, "--name", "n0",
                     "--segment-size", f"{arguments.pool_mib}MiB")  # fmt: skip
        announced(node)
        blocks = arguments.total_mib // arguments.clients
        begin = time.monotonic()
        workers = [
            start(
                __file__,
                "--worker",
                str(number),
                "--master",
                address,
                "--fabric",
                arguments.fabric,
                "--blocks",
                str(blocks),
                "--batch",
                str(arguments.batch),
            )
            for number in range(arguments.clients)
        ]
        results = [announced(worker) for worker in workers]
        seconds = time.monotonic() - begin
    finally:
        for child in reversed(children):
            child.terminate()
            child.wait()
    totals: dict[str, object] = {key: sum(result[key] for result in results) for key in results[0] if key != "errors"}
    totals |= {
        "seconds": round(seconds, 1),
        "fabric": arguments.fabric,
        "errors": [error for result in results for error in result["errors"]],
    }
    print(json.dumps(totals))
    return 1 if totals["put_errors"] or totals["wrong"] or totals["errors"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--fabric", default="shm")
    parser.add_argument("--pool-mib", type=int, default=512)
    parser.add_argument("--total-mib", type=int, default=2_048)
    parser.add_argument("--batch", type=int, default=16)
    for hidden in ("--worker", "--blocks"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--master", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is None:
        return run(arguments)
    done = asyncio.run(work(arguments.master, arguments.fabric, arguments.worker, arguments.blocks, arguments.batch))
    print(json.dumps(done), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
