"""What one object costs the master, in resident bytes: puts N objects by `step` and reads /proc/self/statm.

    python benchmarks/master_memory.py [--objects 1000000] [--chain 64]

Each object has a 32-byte hash, a parent (chains of `--chain` blocks) and one replica. The figure is the growth of the
whole process divided by N: index, columns, replicas, eviction policy, allocator, and what malloc makes of them. Also
prints the rates of puts, and how long the scheduler's lookups take on the filled catalogue.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import time
from pathlib import Path

from pykvpool.core.config import CoreConfig
from pykvpool.core.master import MasterCore
from pykvpool.model import commands
from pykvpool.model.events import Hello, Request, Tick
from pykvpool.model.ids import Generation, RequestId, ScopeId
from pykvpool.model.keys import Scope
from pykvpool.model.replies import ErrorInfo, Mounted, PutGrant, PutStarted, Reply, Welcome

PAGE_BYTES = 4096
OBJECT_BYTES = 65_536
BATCH = 1_000


def resident_bytes() -> int:
    """Resident set of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


class Driver:
    """One node-and-client session on one core."""

    def __init__(self, capacity_bytes: int) -> None:
        self.core = MasterCore(CoreConfig(), epoch=1)
        effects = self.core.step(Hello(1, "bench", "node", 1), 0)
        welcome = effects.replies[0][2]
        if not isinstance(welcome, Welcome):
            raise SystemExit(f"hello was refused: {welcome}")
        self.session = welcome.session
        self.request = 0
        mounted = self.ask(commands.Mount(Generation(1), capacity_bytes, ("inproc://bench",)))
        if not isinstance(mounted, Mounted):
            raise SystemExit(f"mount was refused: {mounted}")

    def ask(self, command: commands.Command) -> Reply:
        """The reply, after as many slices as it takes."""
        self.request += 1
        request = Request(self.session, RequestId(self.request), RequestId(self.request - 1), command)
        effects = self.core.step(request, 1)
        while not effects.replies:
            effects = self.core.step(Tick(), 1)
        reply = effects.replies[0][2]
        if isinstance(reply, ErrorInfo):
            raise SystemExit(f"refused: {reply.message}")
        return reply


def block_hash(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "big")).digest()


def fill(driver: Driver, objects: int, chain: int, scope: ScopeId) -> None:
    for begin in range(0, objects, BATCH):
        numbers = range(begin, min(begin + BATCH, objects))
        hashes = tuple(map(block_hash, numbers))
        parents = tuple(block_hash(number - 1) if number % chain else None for number in numbers)
        started = driver.ask(commands.PutStart(scope, hashes, (OBJECT_BYTES,) * len(hashes), parents))
        if not isinstance(started, PutStarted):
            raise SystemExit(f"put_start answered {started}")
        puts = tuple(entry.put_id for entry in started.entries if isinstance(entry, PutGrant))
        driver.ask(commands.PutEnd(puts, (1,) * len(puts), (1,) * len(puts)))


def time_ms(driver: Driver, command: commands.Command, rounds: int = 7) -> float:
    """Median of a few rounds, in milliseconds."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        reply = driver.ask(command)
        times.append((time.perf_counter() - begin) * 1000)
        lease = getattr(reply, "lease", None)
        if lease is not None:
            driver.ask(commands.Release((lease,)))
    return sorted(times)[rounds // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--chain", type=int, default=64)
    options = parser.parse_args()
    gc.collect()
    gc.freeze()
    driver = Driver(options.objects * OBJECT_BYTES)
    interned = driver.ask(commands.Intern((Scope("bench"),)))
    scope = getattr(interned, "scopes")[0]  # noqa: B009
    fill(driver, BATCH, options.chain, scope)
    gc.collect()
    before, begin = resident_bytes(), time.perf_counter()
    fill(driver, options.objects, options.chain, scope)
    seconds = time.perf_counter() - begin
    tracked = len(gc.get_objects())
    gc.collect()
    print(f"objects             {options.objects:,}")
    print(f"bytes per object    {(resident_bytes() - before) / (options.objects - BATCH):.0f}")
    print(f"objects the collector tracks {tracked:,}")
    print(f"put (start and end) {(options.objects - BATCH) / seconds:,.0f} per second")
    for count in (1_250, 5_000):
        hashes = tuple(map(block_hash, range(count)))
        print(f"exists of {count:,}     {time_ms(driver, commands.Exists(scope, hashes)):.3f} ms")
        matched = time_ms(driver, commands.MatchPrefix(hashes, (scope,)))
        print(f"match_prefix of {count:,}, touched          {matched:.3f} ms")
        held = time_ms(driver, commands.MatchPrefix(hashes, (scope,), hold=True))
        print(f"match_prefix of {count:,}, touched and held {held:.3f} ms")


if __name__ == "__main__":
    main()
