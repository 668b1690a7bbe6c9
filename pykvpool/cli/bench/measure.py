"""How one case is timed: repeat its call for a while, take the median, clean up outside the time."""

from __future__ import annotations

import itertools
import mmap
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

from pykvpool.cli.bench.cases import Control, PutRate, Transfer
from pykvpool.cli.bench.results import Sample
from pykvpool.client import Client, PutItem
from pykvpool.errors import PoolError, TransferFailed
from pykvpool.model.keys import Scope


class Buffers:
    """Memory of the measuring client, registered once: what it puts from, and what it gets into."""

    def __init__(self, size_bytes: int) -> None:
        self.source = memoryview(mmap.mmap(-1, size_bytes))
        self.target = memoryview(mmap.mmap(-1, size_bytes))
        pattern = bytes(range(256)) * 4096
        for at in range(0, size_bytes, len(pattern)):
            end = min(at + len(pattern), size_bytes)
            self.source[at:end] = pattern[: end - at]
            self.target[at:end] = pattern[: end - at]

    def pieces(self, memory: memoryview, case: Transfer) -> list[list[memoryview]]:
        """For each object of a batch, its pieces: the n-th of all objects lie together, as a layer's blocks do."""
        size = case.piece_bytes
        return [
            [memory[(piece * case.batch + obj) * size :][:size] for piece in range(case.pieces)]
            for obj in range(case.batch)
        ]


class Names:
    """Keys that were never used before in this run."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def take(self, count: int) -> list[bytes]:
        """`count` new keys, 32 bytes each as block hashes have."""
        return [next(self._numbers).to_bytes(32, "big") for _ in range(count)]


async def transfer(
    client: Client, node: str, case: Transfer, buffers: Buffers, names: Names, seconds: float
) -> tuple[Sample, Sample]:
    """(puts, gets) of one case. Raises the first `PoolError`; `TransferFailed` where another fabric took the bytes."""
    sources = buffers.pieces(buffers.source, case)
    targets = buffers.pieces(buffers.target, case)
    put_times: list[float] = []
    keys: list[bytes] = []
    until = time.perf_counter() + seconds
    while not put_times or time.perf_counter() < until:
        if keys:
            await _remove(client, keys)
        keys = names.take(case.batch)
        items = [PutItem(key, pieces) for key, pieces in zip(keys, sources, strict=True)]
        started = time.perf_counter()
        stored = await client.put_batch(items, preferred_node=node)
        put_times.append(time.perf_counter() - started)
        _check(stored, case.fabric)

    async def get() -> None:
        _check(await client.get_into_batch(keys, targets), case.fabric)

    gets = await repeat(get, seconds)
    await _remove(client, keys)
    return Sample(statistics.median(put_times), len(put_times)), gets


async def put_rate(client: Client, node: str, case: PutRate, buffers: Buffers, names: Names, seconds: float) -> Sample:
    """Put batches of new small objects."""
    shape = Transfer(case.fabric, case.object_bytes, case.batch)
    puts, _ = await transfer(client, node, shape, buffers, names, seconds)
    return puts


async def control(
    client: Client, case: Control, hashes: Sequence[bytes], scopes: Sequence[Scope], seconds: float
) -> Sample:
    """Ask one question again and again; everything asked about is there."""
    asked = hashes[: case.hashes]

    async def exists() -> None:
        found = await client.exists(asked, scope=scopes[0])
        if not all(found):
            raise TransferFailed("a key that was put is not there: was it evicted?")

    async def match() -> None:
        found = await client.match_prefix(asked, scopes[: case.scopes])
        if found.count != len(asked):
            raise TransferFailed(f"only {found.count} of {len(asked)} hashes are there: were they evicted?")

    return await repeat(exists if case.verb == "exists" else match, seconds)


async def repeat(call: Callable[[], Awaitable[None]], seconds: float) -> Sample:
    """Time `call` again and again for `seconds`, at least once."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        started = time.perf_counter()
        await call()
        times.append(time.perf_counter() - started)
    return Sample(statistics.median(times), len(times))


async def populate(
    client: Client, node: str, hashes: Sequence[bytes], scopes: Sequence[Scope], size_bytes: int
) -> None:
    """Put small objects under every hash in every scope, chained."""
    value = bytes(size_bytes)
    for scope in scopes:
        items = [PutItem(hash_, value, parent) for hash_, parent in zip(hashes, [None, *hashes], strict=False)]
        for result in await client.put_batch(items, scope=scope, preferred_node=node):
            if isinstance(result, PoolError):
                raise result


async def _remove(client: Client, keys: list[bytes]) -> None:
    for error in await client.remove_batch(keys, force=True):
        if error is not None:
            raise error


def _check(results: Sequence[object], fabric: str) -> None:
    for result in results:
        if isinstance(result, PoolError):
            raise result
        scheme = getattr(result, "scheme", "")
        if scheme != fabric:
            raise TransferFailed(f"the bytes went over {scheme or 'no fabric'} instead of {fabric}")
