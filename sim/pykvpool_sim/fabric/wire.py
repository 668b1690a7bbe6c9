"""The data network of one world: who exports what under which rkey, how long things take, what fails, who watches.

It belongs to the world, not to any process: what was posted goes on while the process that posted it is paused, and
what is on the wire lands after that process died. Reachability is the control network's (`Network.passes`): a
partition cuts both planes.

An rkey is a small number that is used again as soon as it is free, so a descriptor of an earlier mount names, as far
as the wire can tell, the present one. Only the protection domain of the queue pair (its generation) keeps them apart.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pykvpool.errors import Unavailable
from pykvpool.fabric.base import Peer
from pykvpool.model.ids import Generation
from pykvpool_sim.clock import NS_PER_MS
from pykvpool_sim.fabric.memory import SimMemory
from pykvpool_sim.fabric.queue_pair import QueuePair
from pykvpool_sim.fabric.terms import FabricFaults, Landing, Taking, Watcher
from pykvpool_sim.life import CURRENT_LIFE, Life, State

if TYPE_CHECKING:
    from pykvpool_sim.fabric.server import SimFabricServer
    from pykvpool_sim.host import Host
    from pykvpool_sim.world import World

#: A request to connect that nobody could hear is sent again after this.
_KNOCK_AGAIN_NS = 100 * NS_PER_MS


@dataclass(frozen=True, slots=True)
class Registration:
    """Memory that a NIC serves."""

    memory: SimMemory
    life: Life


class DataNetwork:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = world.loop
        self.faults = FabricFaults()
        self.draws = world.draws("fabric")
        self.watchers: list[Watcher] = []
        #: Told of all that is taken out of local buffers.
        self.on_taken: list[Callable[[Taking], None]] = []
        #: What happened how often, for summaries.
        self.counts: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        #: By host and rail.
        self._servers: dict[tuple[str, str], tuple[Life, SimFabricServer]] = {}
        #: host -> rkey -> what it names. Kept over restarts: the numbers are the NIC's.
        self._registered: dict[str, dict[int, Registration]] = {}

    # -- the owner's NIC -----------------------------------------------------------------------------------------

    def serve(self, host: Host, server: SimFabricServer) -> None:
        """From now on `server` answers requests to connect to `host`."""
        self._servers[host.name, server.scheme] = (host.life, server)

    def register(self, host: Host, memory: SimMemory) -> int:
        """The rkey: the lowest that is free."""
        table = self._registered.setdefault(host.name, {})
        for rkey in [rkey for rkey, entry in table.items() if entry.life.state is State.DEAD]:
            del table[rkey]
        rkey = next(number for number in range(1, len(table) + 2) if number not in table)
        table[rkey] = Registration(memory, host.life)
        return rkey

    def deregister(self, host: Host, rkey: int) -> None:
        self._registered.get(host.name, {}).pop(rkey, None)

    def find(self, host: str, rkey: int) -> SimMemory | None:
        """What the NIC serves under that number now."""
        entry = self._registered.get(host, {}).get(rkey)
        return None if entry is None or entry.life.state is State.DEAD else entry.memory

    def serves(self, memory: SimMemory) -> bool:
        """A NIC whose process lives still reaches that memory."""
        entries = (entry for table in self._registered.values() for entry in table.values())
        return any(entry.memory is memory and entry.life.state is not State.DEAD for entry in entries)

    def next_number(self) -> int:
        """Of an operation."""
        return next(self._numbers)

    # -- the wire ------------------------------------------------------------------------------------------------

    def delay_ns(self) -> int:
        """How long the next piece travels."""
        faults = self.faults
        delay_ns = self.draws.between(faults.min_delay_ns, faults.max_delay_ns)
        if self.draws.chance(faults.slow_ratio):
            self.counts["slow piece"] += 1
            delay_ns += self.draws.between(0, faults.slow_ns)
        return delay_ns

    def passes(self, source: str, target: str) -> bool:
        return self.world.network.passes(source, target)

    def after(self, delay_ns: int, callback: Callable[..., None], *args: object) -> asyncio.TimerHandle:
        """A callback of the network's own."""
        return self.loop.call_world_at(self.loop.now_ns + delay_ns, callback, *args)

    def saw(self, landing: Landing) -> None:
        if landing.late:
            self.counts["late landing"] += 1
        for watcher in list(self.watchers):
            watcher.landed(landing)

    def took(self, taking: Taking) -> None:
        for tell in self.on_taken:
            tell(taking)

    # -- connecting ----------------------------------------------------------------------------------------------

    async def connect(
        self, near: Life, source: str, target: str, rkey: int, generation: Generation, peer: Peer, rail: str
    ) -> QueuePair:
        """A queue pair to one mount. Raises what the owner says (`SegmentGone`, `Refused`), or `Unavailable`. Waits for
        ever where nothing comes back, or the owner is paused: the caller has a deadline."""
        connected: asyncio.Future[QueuePair] = self.loop.create_future()
        pair = QueuePair(self, near, source, target, rkey, generation, peer)
        self.after(self.delay_ns(), self._knock, pair, connected, rail)
        try:
            return await connected
        except BaseException:
            pair.near_ends()
            raise

    def _knock(self, pair: QueuePair, connected: asyncio.Future[QueuePair], rail: str) -> None:
        if connected.done() or pair.near.state is State.DEAD:
            return
        if not self.passes(pair.source, pair.target) or not self.passes(pair.target, pair.source):
            self.after(_KNOCK_AGAIN_NS, self._knock, pair, connected, rail)
            return
        life, server = self._servers.get((pair.target, rail), (None, None))
        if life is None or server is None or life.state is State.DEAD:
            self.after(self.delay_ns(), _fail, connected, Unavailable(f"nobody serves memory at {pair.target}"))
            return
        # The owner's CPU decides, when it runs.
        context = Context()
        context.run(CURRENT_LIFE.set, life)
        self.loop.call_soon(self._at_the_owner, server, life, pair, connected, context=context)

    def _at_the_owner(
        self, server: SimFabricServer, life: Life, pair: QueuePair, connected: asyncio.Future[QueuePair]
    ) -> None:
        refusal = server.accept(pair)
        if refusal is not None:
            self.counts["refused connection"] += 1
            self.after(self.delay_ns(), _fail, connected, refusal)
            return
        pair.accepted(life)
        self.after(self.delay_ns(), self._hand_over, pair, connected)

    def _hand_over(self, pair: QueuePair, connected: asyncio.Future[QueuePair]) -> None:
        if connected.done() or pair.near.state is State.DEAD:
            pair.near_ends()
        elif not self.passes(pair.target, pair.source):
            self.after(_KNOCK_AGAIN_NS, self._hand_over, pair, connected)
        else:
            connected.set_result(pair)


def _fail(connected: asyncio.Future[QueuePair], error: Exception) -> None:
    if not connected.done():
        connected.set_exception(error)
