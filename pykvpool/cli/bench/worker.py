"""The measuring process: ``python -m pykvpool.cli.bench.worker``, started by the command.

One client for each fabric, and one node of its own, because inproc needs the memory in this process; the other node is
a process apart, for shm, tcp and rdma. Says what it does on standard output, one JSON object a line, the figures last;
stops when its standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import msgspec

from pykvpool import __version__
from pykvpool.cli.bench import measure
from pykvpool.cli.bench.cases import Plan
from pykvpool.cli.bench.results import (
    Figures,
    Round,
    control_figure,
    put_rate_figure,
    raw_medians,
    transfer_figure,
)
from pykvpool.cli.bench.yardsticks import Raw
from pykvpool.cli.processes import Children
from pykvpool.cli.running import run
from pykvpool.cli.servers import embedded_node
from pykvpool.cli.supervised import ended_by, standard_input
from pykvpool.client import Client
from pykvpool.errors import PoolError
from pykvpool.fabric.rdma.settings import RdmaSettings
from pykvpool.model.keys import Scope

T = TypeVar("T")

#: Size of the objects that questions are asked about.
ASKED_BYTES = 64
INPROC_NODE = "bench-inproc"
OTHER_NODE = "bench-node"


class Job(msgspec.Struct, frozen=True):
    """What the command asks of the worker."""

    masters: tuple[str, ...]
    plan: Plan


class Said(msgspec.Struct, omit_defaults=True):
    """One line of the worker: where it stands, the figures, or why there are none."""

    done: int = 0
    steps: int = 0
    what: str = ""
    figures: Figures | None = None
    error_code: int = 0
    error: str = ""


def say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


class Bench:
    """One run of a plan."""

    def __init__(self, job: Job, clients: dict[str, Client], raw: Raw) -> None:
        self._plan = job.plan
        self._clients = clients
        #: Questions to the master are asked by this one.
        self._asking = clients.get("shm") or next(iter(clients.values()))
        self._raw = raw
        self._buffers = measure.Buffers(max(case.total_bytes for case in job.plan.transfers))
        self._names = measure.Names()
        self._done = 0

    @staticmethod
    def _node(fabric: str) -> str:
        return INPROC_NODE if fabric == "inproc" else OTHER_NODE

    def _step(self, what: str) -> None:
        plan = self._plan
        per_round = len(plan.transfers) + len(plan.controls) + len(plan.put_rates) + 1
        say(Said(done=self._done, steps=per_round * plan.rounds + 1, what=what))
        self._done += 1

    async def run(self) -> Figures:
        """Every round; a round that would begin too late is left out, and the last one may be cut short."""
        started = time.perf_counter()
        plan = self._plan
        for client in self._clients.values():
            client.register(self._buffers.source)
            client.register(self._buffers.target)
        self._step("putting what is asked about")
        hashes = self._names.take(max((case.hashes for case in plan.controls), default=0))
        ranks = max((case.scopes for case in plan.controls), default=0)
        scopes = [Scope("bench", "layout", f"rank-{rank}") for rank in range(ranks)]
        await measure.populate(self._asking, OTHER_NODE, hashes, scopes, ASKED_BYTES)
        rounds: list[Round] = []
        for _ in range(plan.rounds):
            if rounds and time.perf_counter() - started > plan.max_seconds:
                break
            rounds.append(await self._round(hashes, scopes, started + plan.max_seconds if rounds else float("inf")))
        return Figures(
            version=__version__,
            python=platform.python_version(),
            processors=os.cpu_count() or 1,
            rounds=len(rounds),
            seconds=time.perf_counter() - started,
            raw=raw_medians(rounds),
            transfers=_there(transfer_figure(case, number, rounds) for number, case in enumerate(plan.transfers)),
            controls=_there(control_figure(case, number, rounds) for number, case in enumerate(plan.controls)),
            put_rates=_there(put_rate_figure(case, number, rounds) for number, case in enumerate(plan.put_rates)),
        )

    async def _round(self, hashes: list[bytes], scopes: list[Scope], until: float) -> Round:
        plan, seconds = self._plan, self._plan.case_seconds
        self._step("the bare machine")
        this = Round(await self._raw.rates(seconds), {}, {}, {}, {})
        for number, case in enumerate(plan.transfers):
            if time.perf_counter() > until:
                break
            self._step(f"{case.fabric}, {case.batch} x {case.object_bytes} bytes")
            this.puts[number], this.gets[number] = await measure.transfer(
                self._clients[case.fabric], self._node(case.fabric), case, self._buffers, self._names, seconds
            )
        for number, asked in enumerate(plan.controls):
            self._step(f"{asked.verb} of {asked.hashes} in {asked.scopes}")
            this.controls[number] = await measure.control(self._asking, asked, hashes, scopes, seconds)
        for number, rate in enumerate(plan.put_rates):
            self._step(f"puts of {rate.object_bytes} bytes")
            this.put_rates[number] = await measure.put_rate(
                self._clients[rate.fabric], self._node(rate.fabric), rate, self._buffers, self._names, seconds
            )
        return this


def _there(figures: Iterable[T | None]) -> list[T]:
    """Figures of the cases that a round got to."""
    return [figure for figure in figures if figure is not None]


@asynccontextmanager
async def bench(job: Job) -> AsyncIterator[Bench]:
    """Everything that a run needs inside this process."""
    plan = job.plan
    async with AsyncExitStack() as stack:
        children = await stack.enter_async_context(Children())
        if "inproc" in plan.fabrics:
            await stack.enter_async_context(embedded_node(INPROC_NODE, job.masters, plan.segment_bytes))
        rdma = RdmaSettings((plan.rdma_device,) if plan.rdma_device else ())
        clients: dict[str, Client] = {}
        for fabric in plan.fabrics:
            client = await Client.connect(job.masters, name=f"bench-client-{fabric}", fabrics=(fabric,), rdma=rdma)
            clients[fabric] = await stack.enter_async_context(client)
        yield Bench(job, clients, await Raw.start(plan, children))


async def main() -> None:
    """Read the job, run it, say the figures. A `PoolError` is said, not raised."""
    reader = await standard_input()
    job = msgspec.json.decode(await reader.readline(), type=Job)
    try:
        async with ended_by(reader), bench(job) as ready:
            figures = await ready.run()
    except PoolError as error:
        say(Said(error_code=error.code, error=f"{error.kind}: {error}"))
    else:
        say(Said(figures=figures))


if __name__ == "__main__":
    with contextlib.suppress(asyncio.CancelledError):
        run(main)
