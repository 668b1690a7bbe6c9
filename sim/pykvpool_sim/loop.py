"""An asyncio event loop on virtual time: no selector, no threads, no waiting.

One turn runs one callback. As long as any is ready, time stands still; when none is, time jumps to the next timer.
Which of the ready ones runs is up to a `Chooser`; whose it is, and whether it may run, is up to its `Life`. Tasks,
futures and timers are numbered as they are made, so that nothing depends on addresses, and the garbage collector runs
at counted turns only, so that finalizers run at the same place every time.

The loop knows tasks, lives and time. It does not know networks, disks, faults, or the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextvars import Context, copy_context
from typing import Any, TypeVar, TypeVarTuple, Unpack

from pykvpool_sim.choosers import Chooser, Fifo
from pykvpool_sim.clock import NS_PER_S, seconds_to_ns
from pykvpool_sim.errors import Deadlock, EscapesSimulation, Livelock, OutOfTime, Unhandled
from pykvpool_sim.escapes import GUARDED_PACKAGES, NoEscapes
from pykvpool_sim.generators import Generators
from pykvpool_sim.life import CURRENT_LIFE, Life, State, bury
from pykvpool_sim.ready import Entry, ReadyQueue, Timer, TimerQueue
from pykvpool_sim.running import collector_held, in_charge
from pykvpool_sim.tasks import SimFuture, SimTask, describe, identity_of, task_of
from pykvpool_sim.trace import Trace

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]

#: Callbacks at one instant before the loop says that time will never move again. A batch of 16,384 keys that each wake
#: a few tasks stays far below it.
LIVELOCK_CALLBACKS = 1_000_000
#: The collector runs after this many callbacks: often enough to bound memory, seldom enough to cost little.
_COLLECT_EVERY = 50_000
#: Cancelling what is left at the end of a run may take this many callbacks; the rest is buried.
_SETTLE_CALLBACKS = 100_000


class SimLoop(NoEscapes):
    """See the module. Use it through `World`, or alone: ``SimLoop().run(main())``.

    Args:
        chooser: who runs next; asyncio's own order by default.
        trace: told each callback that runs.
        guarded: packages whose calls to the real world are refused while the loop runs.
        limit_s: virtual time at which a run ends with `OutOfTime`.
    """

    def __init__(
        self,
        chooser: Chooser | None = None,
        trace: Trace | None = None,
        *,
        guarded: tuple[str, ...] = GUARDED_PACKAGES,
        limit_s: float = 24 * 3600.0,
    ) -> None:
        self.chooser: Chooser = chooser if chooser is not None else Fifo()
        self.trace = trace if trace is not None else Trace()
        #: The world's time.
        self.now_ns = 0
        self._guarded = guarded
        self._limit_ns = seconds_to_ns(limit_s)
        self._numbers = itertools.count(1)
        self._ready = ReadyQueue()
        self._timers = TimerQueue()
        #: Tasks that are not done, by number. Strong references: a crash has to find every one of them.
        self._tasks: dict[int, SimTask[Any]] = {}
        self._generators = Generators(self._close_generator_later)
        #: What reached the default exception handler and was not raised yet.
        self._unhandled: list[dict[str, Any]] = []
        self._handler: ExceptionHandler | None = None
        #: Callbacks run since time last moved.
        self._at_this_instant = 0
        self._running = False
        self._stopping = False
        self._closed = False
        self._debug = False

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end, `settle`, `close`. A loop runs once in this way."""
        with collector_held():
            try:
                result: T = self.run_until_complete(main)
                self.settle()
            finally:
                self.close()
        return result

    def run_until_complete(self, future: Any) -> Any:
        """Run until `future` (or coroutine) is done. Raises `Deadlock`, `Livelock`, `OutOfTime` or `Unhandled` where
        the run cannot, or should not, go on."""
        self._check_closed()
        with self._in_charge():
            main = asyncio.ensure_future(future, loop=self)
            while not main.done():
                self._turn("what is waited for")
        return main.result()

    def run_forever(self) -> None:
        """Run until `stop`."""
        self._check_closed()
        with self._in_charge():
            while not self._stopping:
                self._turn("stop()")
            self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def settle(self) -> None:
        """Cancel every task that is left, in order, and run what follows from that; what does not end is buried. Then
        collect garbage, so that errors nobody looked at come to light, and raise them as `Unhandled`."""
        with self._in_charge():
            for task in list(self._tasks.values()):
                task.cancel()
            deadline_count = self.trace.executed_count + _SETTLE_CALLBACKS
            # A task that cannot end, or an end that needs endless time, is the scenario's business no more.
            with contextlib.suppress(Deadlock, OutOfTime):
                while self._tasks and self.trace.executed_count < deadline_count:
                    self._turn("the last task")
            self._bury_tasks()
            gc.collect()
            self._raise_unhandled()

    def close(self) -> None:
        """Harmless twice. Tasks that are not done never run on (`settle` ends them in good order before)."""
        if self._running:
            raise RuntimeError("a running loop cannot be closed")
        if not self._closed:
            self._closed = True
            self._bury_tasks()
            self._ready, self._timers = ReadyQueue(), TimerQueue()

    def _bury_tasks(self) -> None:
        if self._tasks:
            bury([*self._tasks.values()])
            self._tasks.clear()

    @contextlib.contextmanager
    def _in_charge(self) -> Iterator[None]:
        with in_charge(self, self._generators, self._guarded):
            self._running = True
            try:
                yield
            finally:
                self._running = False

    def _turn(self, goal: str) -> None:
        """Run one callback, or else move time to the next timer."""
        if self._timers.first_ns <= self.now_ns:
            self._ready.add_all(self._timers.pop_due(self.now_ns))
        entry = self._ready.take(self.chooser)
        if entry is None:
            self._move_time(goal)
            return
        self._at_this_instant += 1
        if self._at_this_instant > LIVELOCK_CALLBACKS:
            last = "\n".join(self.trace.entries()[-10:])
            raise Livelock(f"{self._at_this_instant:,} callbacks at {self.now_ns / NS_PER_S} s; the last:\n{last}")
        self.trace.executed(self.now_ns, entry.identity)
        task = entry.task
        entry.handle._run()
        if task is not None and task.done():
            self._tasks.pop(task.number, None)
        # An error's traceback keeps this frame. If the frame kept the task, and so its error, they would be a cycle,
        # and nobody would hear of the error before the next collection.
        del task, entry
        if self.trace.executed_count % _COLLECT_EVERY == 0:
            gc.collect()
        if self._unhandled:
            self._raise_unhandled()

    def _move_time(self, goal: str) -> None:
        next_ns = self._timers.next_ns()
        if next_ns is None:
            raise Deadlock(f"nothing can run, no timer is set, and {goal} has not come\n{self.describe_tasks()}")
        if next_ns > self._limit_ns:
            limit_s = self._limit_ns / NS_PER_S
            raise OutOfTime(f"{goal} has not come within {limit_s} virtual seconds\n{self.describe_tasks()}")
        self.now_ns = max(self.now_ns, next_ns)
        self._at_this_instant = 0

    # -- callbacks and time --------------------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds of monotonic time: the current life's own, or the world's."""
        life = CURRENT_LIFE.get()
        return (self.now_ns if life is None else life.clock.monotonic_ns()) / NS_PER_S

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_closed()
        context = context if context is not None else copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        self._add(self._entry(handle, callback, context))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """There is one thread: the same as `call_soon`."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """`when` is by the clock that `time()` reads here."""
        self._check_closed()
        context = context if context is not None else copy_context()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        entry = self._entry(handle, callback, context)
        life = CURRENT_LIFE.get()
        when_ns = seconds_to_ns(when)
        world_ns = when_ns if life is None else life.clock.world_ns_at(when_ns)
        if when > self.time():
            # What is ahead, by however little, needs time to move: code that waits for the rest would spin for ever.
            world_ns = max(world_ns, self.now_ns + 1)
        if entry.life is not None and entry.life.state is State.DEAD:
            bury([entry])
        else:
            self._timers.add(Timer(world_ns, next(self._numbers), entry))
        return handle

    def call_world_at(self, world_ns: int, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> asyncio.TimerHandle:
        """A callback of the world's own, at a time of its own clock, whoever asks for it."""
        self._check_closed()
        context = Context()
        handle = asyncio.TimerHandle(world_ns / NS_PER_S, callback, args, self, context)
        self._timers.add(Timer(world_ns, next(self._numbers), self._entry(handle, callback, context)))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._timers.note_cancelled()

    def _entry(self, handle: asyncio.Handle, callback: object, context: Context) -> Entry:
        life = context.get(CURRENT_LIFE)
        task = task_of(callback)
        if task is not None:
            return Entry(handle, life, task.number, task.identity, task)
        owner, strand = ("world", 0) if life is None else (life.name, -life.number)
        return Entry(handle, life, strand, f"{owner} {identity_of(callback)}", None)

    def _add(self, entry: Entry) -> None:
        if entry.life is not None and entry.life.state is State.DEAD:
            bury([entry])
        else:
            self._ready.add(entry)

    # -- tasks and futures ---------------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(number=next(self._numbers), loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        self._check_closed()
        context = context if context is not None else copy_context()
        task = SimTask(coro, number=next(self._numbers), context=context, loop=self, name=name)
        self._tasks[task.number] = task
        return task

    def get_task_factory(self) -> None:
        return None

    def set_task_factory(self, factory: object) -> None:
        """Raises `EscapesSimulation`: the loop numbers its tasks."""
        if factory is not None:
            raise EscapesSimulation("a task factory would make tasks that hash by address")

    def describe_tasks(self) -> str:
        """Every task that is not done, with its stack and the state of its host."""
        lines = []
        for task in self._tasks.values():
            stopped = "" if task.life is None or task.life.state is State.RUNNING else f"[{task.life.state.value}] "
            lines.append(stopped + describe(task))
        return "\n".join(lines) or "no task is left"

    # -- lives ---------------------------------------------------------------------------------------------------

    def end_life(self, life: Life) -> None:
        """Nothing of this life runs again, not even its cleanup: see `pykvpool_sim.life.bury`."""
        life.state = State.DEAD
        remains: list[object] = [*self._ready.withdraw(life), *self._timers.withdraw(life)]
        theirs = [task.number for task in self._tasks.values() if task.life is life]
        remains.extend(self._tasks.pop(number) for number in theirs)
        bury(remains)

    def resume_life(self, life: Life) -> None:
        """What waited runs now, in its old order."""
        life.state = State.RUNNING
        self._ready.add_all(life.parked)
        life.parked = []

    def take_timers(self, life: Life) -> list[Timer]:
        """Stop the timers of a life whose monotonic clock stops; `put_back` sets them again."""
        return self._timers.withdraw(life)

    def put_back(self, timers: list[Timer], later_ns: int) -> None:
        """Set timers again, `later_ns` of world time later than they were."""
        for timer in timers:
            self._timers.add(Timer(timer.world_ns + later_ns, timer.number, timer.entry))

    # -- asynchronous generators ---------------------------------------------------------------------------------

    def _close_generator_later(self, generator: AsyncGenerator[Any, Any], context: Context) -> None:
        if not self._closed:
            self.call_soon(self._close_generator, generator, context=context)

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.create_task(_aclose(generator))

    async def shutdown_asyncgens(self) -> None:
        """Close those in use, the oldest first."""
        await self._generators.close_all()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    # -- errors --------------------------------------------------------------------------------------------------

    def get_exception_handler(self) -> ExceptionHandler | None:
        return self._handler

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        self._handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._handler is not None:
            self._handler(self, context)
        else:
            self.default_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody awaits is a bug of the code under test: the run ends with it."""
        self._unhandled.append(context)

    def _raise_unhandled(self) -> None:
        if self._unhandled:
            contexts, self._unhandled = tuple(self._unhandled), []
            message = "; ".join(f"{context.get('message')}: {context.get('exception')!r}" for context in contexts)
            raise Unhandled(message, contexts) from contexts[0].get("exception")

    def get_debug(self) -> bool:
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        self._debug = enabled

    def _check_closed(self) -> None:
        if self._closed:
            raise RuntimeError("the simulated loop is closed")


async def _aclose(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()
