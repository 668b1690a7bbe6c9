"""Which hosts reach each other, how long it takes, and who listens where.

The network is the world's, not any host's: it goes on while hosts sleep and die. Connections are reliable as TCP's are:
frames arrive whole and in order or not at all, and what ends is a connection, never a frame in the middle. A partition
does not end connections: frames wait, and the sender gives up in the end; the receiver never learns unless it sends.

How one connection carries frames is in `pykvpool_sim.pipes`; `pykvpool_sim.transport` makes streams of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pykvpool.errors import ConfigError, Unavailable
from pykvpool_sim.clock import NS_PER_MS, NS_PER_S
from pykvpool_sim.life import CURRENT_LIFE, Life, State
from pykvpool_sim.pipes import End, connect_pipes

if TYPE_CHECKING:
    from pykvpool_sim.host import Host
    from pykvpool_sim.world import World

#: First of the ports given out when port 0 is asked for, as on real hosts.
_FIRST_EPHEMERAL_PORT = 49_152


@dataclass(frozen=True, slots=True)
class NetworkFaults:
    """How frames travel. Delays in nanoseconds, drawn evenly for each frame; ratios are probabilities per frame."""

    min_delay_ns: int = 50_000
    max_delay_ns: int = 200_000
    #: Some frames take longer by up to `slow_ns`; those behind them wait.
    slow_ratio: float = 0.0
    slow_ns: int = 500 * NS_PER_MS
    #: The connection breaks at this frame (the frame and all later ones are lost) ...
    break_ratio: float = 0.0
    #: ... and of such breaks, this part is told to one end only.
    half_open_ratio: float = 0.0
    #: Of one connection, in each direction; None: endless.
    bandwidth_bytes_per_s: int | None = None
    #: How long a sender waits for an unreachable peer before its end of the connection breaks.
    min_give_up_ns: int = 5 * NS_PER_S
    max_give_up_ns: int = 20 * NS_PER_S


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A partition, or half of one."""

    sources: frozenset[str]
    targets: frozenset[str]
    one_way: bool

    def stops(self, source: str, target: str) -> bool:
        there = source in self.sources and target in self.targets
        return there or (not self.one_way and source in self.targets and target in self.sources)


@dataclass(slots=True)
class Listening:
    """A port somebody listens on."""

    life: Life
    host: str
    port: int
    on_connect: Callable[[End], None]
    closed: bool = False


class Network:
    """The network of one `World`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults = NetworkFaults()
        self.draws = world.draws("network")
        self._cuts: list[Cut] = []
        self._listening: dict[tuple[str, int], Listening] = {}
        self._ports = itertools.count(_FIRST_EPHEMERAL_PORT)
        #: Both ends of every connection that is not over, in the order in which they were made.
        self._ends: dict[End, None] = {}

    # -- partitions ----------------------------------------------------------------------------------------------

    def cut(self, sources: Iterable[str], targets: Iterable[str], *, one_way: bool = False) -> Cut:
        """Nothing passes from `sources` to `targets` from now on, nor back unless `one_way`, until `heal`."""
        cut = Cut(frozenset(sources), frozenset(targets), one_way)
        self._cuts.append(cut)
        return cut

    def heal(self, cut: Cut | None = None) -> None:
        """Undo one cut, or all. What waited arrives after a fresh delay. Harmless where it was undone before."""
        self._cuts = [other for other in self._cuts if cut is not None and other is not cut]
        self._kick()

    def passes(self, source: str, target: str) -> bool:
        """Would a frame from `source` reach the kernel of `target` now?"""
        return (
            not any(cut.stops(source, target) for cut in self._cuts)
            and not self.world.hosts[source].is_suspended
            and self.world.hosts[target].powered
            and not self.world.hosts[target].is_suspended
        )

    # -- connections ---------------------------------------------------------------------------------------------

    def listen(self, host: Host, port: int, on_connect: Callable[[End], None]) -> Listening:
        """`on_connect` is called in the host's life for each connection. Port 0: any. Raises `ConfigError` where the
        port is taken."""
        port = port or next(self._ports)
        taken = self._listening.get((host.name, port))
        if taken is not None and not taken.closed and taken.life.state is not State.DEAD:
            address = f"sim://{host.name}:{port}"
            raise ConfigError(f"cannot listen on {address}: {taken.life.name} does; choose another with --listen")
        self._listening[host.name, port] = listening = Listening(host.life, host.name, port, on_connect)
        return listening

    async def connect(self, host: Host, target: str, port: int) -> End:
        """Raises `Unavailable` where there is no such host or nobody listens. Waits, for ever if need be, where nothing
        comes back: the caller has a deadline."""
        if target not in self.world.hosts:
            raise Unavailable(f"no host {target!r} in this world")
        connected: asyncio.Future[End] = self.world.loop.create_future()
        self._later(self._knock, host.life, host.name, target, port, connected)
        return await connected

    def host_reachable(self) -> None:
        """It has current again, or woke up: what waited for that goes on."""
        self._kick()

    def host_crashed(self, name: str, *, power: bool) -> None:
        """With `power` its ends vanish without a word; else its kernel ends its connections."""
        for end in list(self._ends):
            if end.host == name:
                end.owner_died(power=power)

    def delay_ns(self, size_bytes: int = 0) -> int:
        """How long the next frame travels."""
        faults = self.faults
        delay_ns = self.draws.between(faults.min_delay_ns, faults.max_delay_ns)
        if self.draws.chance(faults.slow_ratio):
            delay_ns += self.draws.between(0, faults.slow_ns)
        if faults.bandwidth_bytes_per_s is not None:
            delay_ns += size_bytes * NS_PER_S // faults.bandwidth_bytes_per_s
        return delay_ns

    def opened(self, end: End) -> None:
        """For `End`: it takes part from now on."""
        self._ends[end] = None

    def ended(self, end: End) -> None:
        """For `End`: it is over."""
        self._ends.pop(end, None)

    def _kick(self) -> None:
        for end in list(self._ends):
            end.kick()

    def _later(self, callback: Callable[..., None], *args: object) -> None:
        self.world.loop.call_world_at(self.world.loop.now_ns + self.delay_ns(), callback, *args)

    def _knock(self, life: Life, source: str, target: str, port: int, connected: asyncio.Future[End]) -> None:
        """The request to connect arrives, or is sent again later."""
        if connected.done() or life.state is State.DEAD:
            return
        if not self.passes(source, target) or not self.passes(target, source):
            self.world.loop.call_world_at(
                self.world.loop.now_ns + NS_PER_S, self._knock, life, source, target, port, connected
            )
            return
        listening = self._listening.get((target, port))
        if listening is None or listening.closed or listening.life.state is State.DEAD:
            self._later(_refuse, connected, f"connection refused by {target}:{port}")
            return
        near, far = connect_pipes(self, life, source, listening.life, target)
        # The kernel of a paused host accepts; the host learns of it when it runs again.
        context = Context()
        context.run(CURRENT_LIFE.set, listening.life)
        self.world.loop.call_soon(listening.on_connect, far, context=context)
        self._later(_hand_over, connected, near)


def _refuse(connected: asyncio.Future[End], reason: str) -> None:
    if not connected.done():
        connected.set_exception(Unavailable(reason))


def _hand_over(connected: asyncio.Future[End], near: End) -> None:
    """Where nobody waits any more, nobody will ever use this end."""
    if connected.done():
        near.abort()
    else:
        connected.set_result(near)
