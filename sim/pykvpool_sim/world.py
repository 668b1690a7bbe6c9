"""One simulated world: a seed and all that follows from it.

It holds the loop, the trace, the network, the hosts and the history, and splits the seed into named streams. A scenario
is a coroutine function that is given the world and runs in no host::

    async def scenario(world: World) -> None:
        node = world.host("node", boot=run_node)
        await asyncio.sleep(5)
        node.crash()

    World(seed=7).run(scenario)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pykvpool_sim.choosers import Chooser, Seeded
from pykvpool_sim.clock import HostClock
from pykvpool_sim.draws import Draws
from pykvpool_sim.escapes import GUARDED_PACKAGES
from pykvpool_sim.history import History
from pykvpool_sim.host import Boot, Host
from pykvpool_sim.loop import SimLoop
from pykvpool_sim.network import Network
from pykvpool_sim.seeds import replay_note
from pykvpool_sim.trace import Trace

T = TypeVar("T")

#: Hosts booted up to this long before the world began, so that their boot times cannot be compared.
_MAX_BOOT_MS = 30 * 24 * 3600 * 1000


class World:
    """See the module.

    Args:
        seed: all randomness comes from it.
        chooser: makes the chooser from a random stream: `Seeded` (default), `Pct`, or ``lambda _: Tape(choices)``.
        keep_trace: keep every entry of the trace, to compare two runs.
        guarded: further top-level modules that may not touch the real world (the test's own name, for one).
        limit_s: virtual time within which the scenario has to end.
    """

    def __init__(
        self,
        seed: int,
        *,
        chooser: Callable[[Draws], Chooser] = Seeded,
        keep_trace: bool = False,
        guarded: tuple[str, ...] = (),
        limit_s: float = 24 * 3600.0,
    ) -> None:
        self.seed = seed
        self.trace = Trace(keep_all=keep_trace)
        self._streams: dict[str, Draws] = {}
        self._life_numbers = itertools.count(1)
        # What SimLoop lacks of an event loop it refuses by name, which mypy cannot see.
        self.loop = SimLoop(  # type: ignore[abstract]
            chooser(self.draws("schedule")), self.trace, guarded=(*GUARDED_PACKAGES, *guarded), limit_s=limit_s
        )
        self.history = History(lambda: self.loop.now_ns)
        self.hosts: dict[str, Host] = {}
        self.network = Network(self)

    def draws(self, name: str) -> Draws:
        """The random stream of this name; one stream however often it is asked for."""
        if name not in self._streams:
            self._streams[name] = Draws(self.seed, name, self.trace.drew)
        return self._streams[name]

    def host(self, name: str, boot: Boot | None = None, *, drift_ppm: int = 0) -> Host:
        """A new host, up and running `boot`. Raises ValueError where the name is taken."""
        if name in self.hosts:
            raise ValueError(f"there is a host {name!r} already")
        boot_ms = self.draws(f"{name}/clock").between(0, _MAX_BOOT_MS)
        clock = HostClock(lambda: self.loop.now_ns, boot_ms=boot_ms, drift_ppm=drift_ppm)
        self.hosts[name] = host = Host(self, name, boot, clock)
        return host

    def run(self, scenario: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        """Run a scenario to its end, then cancel what is left and raise errors that nobody looked at. Any error gets a
        note with the seed and the command that replays it. A world runs once."""
        try:
            return self.loop.run(scenario(self))
        except BaseException as error:
            error.add_note(replay_note(self.seed))
            raise

    def next_life_number(self) -> int:
        """For `Host`."""
        return next(self._life_numbers)
