"""The owner's side of ``sim://``: it decides who may connect, and takes connections down; bytes move without it.

One protection domain for each mount: a queue pair is made for one generation and dies with it.
"""

from __future__ import annotations

import asyncio

from pykvpool.errors import PoolError, Refused, invariant
from pykvpool.fabric.base import Exported
from pykvpool.fabric.exports import ExportTable, gone
from pykvpool.model.ids import Generation
from pykvpool_sim.fabric.memory import SimMemory
from pykvpool_sim.fabric.queue_pair import QueuePair
from pykvpool_sim.fabric.wire import DataNetwork
from pykvpool_sim.host import Host

#: A host may have several rails, a scheme each: networks that are as good as each other, with queue pairs of their own.
RAILS = ("sim", "sim-b")


class SimFabricServer:
    """See `pykvpool.fabric.base.FabricServer`. Belongs to the life of `host` in which it is made."""

    #: Asked of nobody: there is one cluster.
    cluster = ""

    def __init__(self, host: Host, network: DataNetwork, scheme: str = RAILS[0]) -> None:
        self.scheme = scheme
        self._host = host
        self._network = network
        #: Who is banned, and what is on offer.
        self._table = ExportTable()
        self._rkeys: dict[Generation, int] = {}
        #: Queue pairs by age; values mean nothing.
        self._pairs: dict[QueuePair, None] = {}

    async def start(self) -> None:
        self._network.serve(self._host, self)

    def export(self, memory: Exported) -> str:
        invariant(isinstance(memory, SimMemory), "the simulated fabric serves simulated memory")
        assert isinstance(memory, SimMemory)
        self._table.add(memory)
        rkey = self._rkeys[memory.generation] = self._network.register(self._host, memory)
        return f"{self.scheme}://{self._host.name}/{rkey}"

    async def withdraw(self, generation: Generation) -> None:
        if self._table.remove(generation) is None:
            return
        await self._cut_off([pair for pair in self._pairs if pair.generation == generation])
        rkey = self._rkeys.pop(generation, None)
        invariant(rkey is not None, "a mount that was withdrawn is still on offer")
        assert rkey is not None
        self._network.deregister(self._host, rkey)

    async def fence(self, name: str, incarnation: int, generation: Generation, ban: bool) -> None:
        if ban:
            self._table.ban(name, incarnation)
        await self._cut_off(
            [
                pair
                for pair in self._pairs
                if pair.generation == generation and (pair.peer.name, pair.peer.incarnation) == (name, incarnation)
            ]
        )

    async def close(self) -> None:
        for generation in self._table.generations():
            await self.withdraw(generation)

    def accept(self, pair: QueuePair) -> PoolError | None:
        """A peer asks for a queue pair: None where it gets it, else why not. For `DataNetwork`."""
        self._pairs = {known: None for known in self._pairs if not known.is_over}
        if pair.generation not in self._table.generations():
            return gone(pair.generation)
        if self._table.is_banned(pair.peer):
            return Refused(f"the session of {pair.peer.name!r} is over")
        invariant(pair.generation in self._rkeys, "a peer was let into a mount that was withdrawn")
        self._pairs[pair] = None
        return None

    async def _cut_off(self, pairs: list[QueuePair]) -> None:
        """Returns when nothing lands here through them any more."""
        ends: list[asyncio.Future[None]] = [pair.cut_off() for pair in pairs]
        for end in ends:
            await asyncio.shield(end)
        for pair in pairs:
            self._pairs.pop(pair, None)
