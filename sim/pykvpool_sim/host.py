"""A machine of the simulated cluster: its clock, random streams and disk outlive its processes;
one life at a time, whose tasks run, wait or are dead.

A host is handled from outside, by the scenario or a fault. Its own code cannot tell; what it can do to itself is
`crash_here`. What the different ends mean:

- `pause`: the process is stopped (SIGSTOP, a long collection). Its timers are due when it goes on; the kernel serves
  its connections meanwhile.
- `suspend`: the machine sleeps. Monotonic time stops, boot time goes on; nobody answers for it.
- `crash(power=False)`: the process is killed. The page cache and the kernel live: peers see the connections end.
- `crash(power=True)`: the machine is gone with its page cache. Peers see silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pykvpool_sim.clock import HostClock
from pykvpool_sim.disk import Disk
from pykvpool_sim.draws import Draws
from pykvpool_sim.errors import HostCrashed, SimulationError
from pykvpool_sim.life import CURRENT_LIFE, Life, State
from pykvpool_sim.ready import Timer

if TYPE_CHECKING:
    from pykvpool_sim.world import World

T = TypeVar("T")
Boot = Callable[["Host"], Coroutine[Any, Any, None]]


class Host:
    """Made by `World.host`."""

    def __init__(self, world: World, name: str, boot: Boot | None, clock: HostClock) -> None:
        self.world = world
        self.name = name
        self.clock = clock
        self.disk = Disk(name, self.draws("disk"))
        self._boot = boot
        #: The machine has current; without, nothing answers for it, not even its kernel.
        self.powered = True
        self._lives = 0
        self.life: Life
        #: Who waits in `run` for what happens here.
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self._on_crash: list[Callable[[], None]] = []
        #: Timers taken out while the machine sleeps; None: it is awake.
        self._sleeping_timers: list[Timer] | None = None
        self._begin_life()

    # -- what runs here ------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """It has a life, be it a paused one."""
        return self.life.state is not State.DEAD

    @property
    def is_suspended(self) -> bool:
        return self._sleeping_timers is not None

    def draws(self, purpose: str) -> Draws:
        """A random stream of this host's own."""
        return self.world.draws(f"{self.name}/{purpose}")

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Start a task here; all that it starts is here too. Raises `HostCrashed` where the host is down."""
        if not self.is_up:
            coroutine.close()
            raise HostCrashed(f"{self.name} is down: it cannot run anything")
        context = Context()
        context.run(CURRENT_LIFE.set, self.life)
        return self.world.loop.create_task(coroutine, name=name, context=context)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something here and wait for its outcome from outside. Raises `HostCrashed` where the host crashes first;
        a cancelled wait cancels what runs."""
        task = self.spawn(coroutine)
        outcome: asyncio.Future[T] = self.world.loop.create_future()
        self._waiting[outcome] = None
        task.add_done_callback(lambda done: _pass_on(done, outcome))
        try:
            return await outcome
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            del self._waiting[outcome]

    def on_crash(self, callback: Callable[[], None]) -> None:
        """Called once, when this life ends: drop what is large (see `pykvpool_sim.life.bury`)."""
        self._on_crash.append(callback)

    # -- what befalls it -----------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Its tasks do not run until `resume`. Harmless where it is down or paused."""
        self._from_outside("pause")
        if self.life.state is State.RUNNING:
            self.life.state = State.PAUSED

    def resume(self) -> None:
        """Undoes `pause`; harmless otherwise."""
        if self.life.state is State.PAUSED and not self.is_suspended:
            self.world.loop.resume_life(self.life)

    def suspend(self) -> None:
        """The machine sleeps until `wake`: tasks wait, timers stand still. Harmless where it is down or asleep."""
        self._from_outside("suspend")
        if self.is_up and not self.is_suspended:
            self.life.state = State.PAUSED
            self.clock.suspend()
            self._sleeping_timers = self.world.loop.take_timers(self.life)

    def wake(self) -> None:
        """Undoes `suspend`: timers have as long to go as before, boot time has moved on. Harmless otherwise."""
        if self._sleeping_timers is not None:
            timers, self._sleeping_timers = self._sleeping_timers, None
            self.world.loop.put_back(timers, self.clock.wake())
            self.world.loop.resume_life(self.life)
            self.world.network.host_reachable()

    def crash(self, *, power: bool = True) -> None:
        """This life ends where it stands: no ``finally``, no cancellation, no further callback, now or ever. With
        `power` the disk loses what was not synced. Harmless where it is down."""
        self._from_outside("crash")
        if not self.is_up:
            return
        if self._sleeping_timers is not None:
            self.clock.wake()
            self.world.loop.put_back(self._sleeping_timers, 0)
            self._sleeping_timers = None
        self.world.trace.note(f"{self.life.name} crashes, power={power}")
        self.world.loop.end_life(self.life)
        self.powered = not power
        self.disk.crash(power=power)
        self.world.network.host_crashed(self.name, power=power)
        callbacks, self._on_crash = self._on_crash, []
        for callback in callbacks:
            callback()
        for outcome in list(self._waiting):
            if not outcome.done():
                outcome.set_exception(HostCrashed(f"{self.name} crashed"))

    async def crash_here(self, *, power: bool = True) -> NoReturn:
        """For code that runs on the host: it crashes at this very line."""
        self.world.loop.call_soon(lambda: self.crash(power=power), context=Context())
        await self.world.loop.create_future()
        raise SimulationError("a crashed host runs on")

    def restart(self, *, wipe_disk: bool = False) -> None:
        """A new life, which boots as the first did. Ends the present one (`power=False`) if there is one."""
        self.crash(power=False)
        if wipe_disk:
            self.disk.wipe()
        self._begin_life()

    def _begin_life(self) -> None:
        self._lives += 1
        self.life = Life(self.world.next_life_number(), f"{self.name}#{self._lives}", self.clock)
        self.powered = True
        self.world.network.host_reachable()
        if self._boot is not None:
            self.spawn(self._boot(self), name=f"{self.life.name} boot")

    def _from_outside(self, verb: str) -> None:
        if CURRENT_LIFE.get() is self.life:
            raise SimulationError(f"{self.name} cannot {verb} itself in the middle of a line; see Host.crash_here")


def _pass_on(done: asyncio.Task[T], outcome: asyncio.Future[T]) -> None:
    if outcome.done():
        return  # Nobody waits any more. An error stays with its task, unseen, and so ends the run.
    if done.cancelled():
        outcome.cancel()
    elif (error := done.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(done.result())
