"""A client process: it connects, its workers take turns until it is told to rest, and where it loses its session it
connects again.

Turns have their times, which do not depend on how long others take (unless all workers are busy): so a history with
some turns left out has the others when they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container

from pykvpool.client import Client
from pykvpool.errors import Closed, PoolError, SessionExpired
from pykvpool_sim.clock import NS_PER_MS, NS_PER_S
from pykvpool_sim.cluster.buffers import PaintedBuffers
from pykvpool_sim.cluster.cluster import Cluster
from pykvpool_sim.cluster.shape import ClientShape
from pykvpool_sim.cluster.turns import CallCancelled, Turn
from pykvpool_sim.cluster.workload import VERBS
from pykvpool_sim.draws import Draws
from pykvpool_sim.host import Host

#: A client that lost its session, or found no master, comes back after this.
_COME_BACK_S = 0.3
#: Pauses are half as long again as a worker's thinking: what it does takes time as well.
_PAUSE_NS_PER_MS = NS_PER_MS * 3 // 2
#: Turns that are late by more than this are not made up for.
_MAX_LATE_NS = 1_000_000_000
#: Some clients leave in good order after a while, in the midst of it all, and come back as another session.
_MAX_STAY_MS = 15_000


class ClientProgram:
    """One life of one client process. `await run()` on its host.

    Args:
        turns: names of the turns that are taken, the others are left out; None: all.
    """

    def __init__(self, cluster: Cluster, host: Host, shape: ClientShape, turns: Container[str] | None = None) -> None:
        self._cluster = cluster
        self._host = host
        self._shape = shape
        self._turns = turns
        self._draws: Draws = host.draws("workload")
        self._process = host.life.name
        self.buffers = PaintedBuffers(host.name, cluster.verdicts)
        #: When the next turn is due, on the world's clock.
        self._due_ns = cluster.world.loop.now_ns
        self._aside = Turn(cluster, host, shape, self.buffers)

    async def run(self) -> None:
        shape = self._shape
        while not self._cluster.rest.is_set():
            try:
                client = await self._cluster.connect(
                    self._host,
                    name=shape.name if shape.named else None,
                    replicas=shape.replicas,
                    lanes=shape.lanes,
                    blind=shape.blind,
                    maps=shape.maps,
                )
            except PoolError as error:
                self._aside.judge_error("connect", error)
                await asyncio.sleep(_COME_BACK_S)
                continue
            await self._work(client)
            if self._cluster.rest.is_set() and self._draws.chance(0.5):
                # Idle, and connected: what it left behind has to go all the same.
                await asyncio.Event().wait()
            await self._aside.recorded("close", client.close())

    async def _work(self, client: Client) -> None:
        """Until there is nothing to do any more, the session is gone for good, or it is time to leave."""
        workers = [asyncio.ensure_future(self._worker(client)) for _ in range(self._shape.workers)]
        stays_s = self._draws.between(1_000, _MAX_STAY_MS) / 1_000 if self._draws.chance(0.3) else None
        await asyncio.wait(workers, timeout=stays_s, return_when=asyncio.FIRST_EXCEPTION)
        for worker in workers:
            worker.cancel()
        for worker in workers:
            await asyncio.wait([worker])
            error = None if worker.cancelled() else worker.exception()
            if error is not None and not isinstance(error, SessionExpired | Closed):
                self._cluster.verdicts.add("bug", f"{self._process} met {error!r}")

    async def _worker(self, client: Client) -> None:
        verbs = [verb for verb, _ in VERBS.values()]
        while not self._cluster.rest.is_set():
            turn = Turn(self._cluster, self._host, self._shape, self.buffers, self._cluster.next_turn(self._host.name))
            await self._until_due(turn)
            (verb,) = turn.draws.choices(verbs, self._shape.weights)
            if self._turns is not None and turn.name not in self._turns:
                continue
            try:
                await verb(turn, client)
            except (SessionExpired, Closed):
                raise
            except (PoolError, CallCancelled):
                continue  # recorded and judged

    async def _until_due(self, turn: Turn) -> None:
        """Turns of all workers come one after the other, with drawn pauses between them."""
        pause_ns = turn.draws.between(0, self._shape.think_ms) * _PAUSE_NS_PER_MS // self._shape.workers
        self._due_ns = max(self._due_ns + pause_ns, turn.now_ns() - _MAX_LATE_NS)
        await asyncio.sleep(max(0, self._due_ns - turn.now_ns()) / NS_PER_S)
