"""A run with a bit of everything, as a program: prints its digest. Runs on any Python with nothing installed.

python tests/sim/workload.py SEED [CHOOSER]
"""

import asyncio
import contextlib
import sys

from pykvpool.errors import PoolError
from pykvpool_sim.choosers import Fifo, Pct, Seeded, Tape
from pykvpool_sim.disk import DiskFaults
from pykvpool_sim.errors import HostCrashed
from pykvpool_sim.log import Log, LogBroken
from pykvpool_sim.plan import Budget, carry_out, draw_plan
from pykvpool_sim.runtime import sim_runtime
from pykvpool_sim.world import World

CHOOSERS = {
    "seeded": Seeded,
    "fifo": lambda draws: Fifo(),
    "pct": lambda draws: Pct(draws, depth=3, steps=500),
    "tape": lambda draws: Tape(range(1_000)),
}
PORT = 9
HOSTS = ("a", "b", "c")


class Inbox:
    """The plainest receiver: a queue."""

    is_full = False

    def __init__(self):
        self.frames = asyncio.Queue()

    def arrived(self, frame):
        self.frames.put_nowait(frame)

    def ended(self, failure):
        self.frames.put_nowait(None)

    def progressed(self):
        pass


async def serve(host):
    """Echoes, and writes what it echoed to a log."""
    runtime = sim_runtime(host, cost=lambda function, args: 1_000_000)
    log = None
    tasks = set()

    async def talk(end):
        nonlocal log
        inbox = Inbox()
        end.attach(inbox)
        while (frame := await inbox.frames.get()) is not None:
            try:
                log = log or await Log.open(host.disk, "log", host.draws("ids"))
                await log.append(frame)
            except (OSError, LogBroken):
                log = None
            end.send(await runtime.offload.run(bytes.upper, frame))

    def on_connect(end):
        task = asyncio.ensure_future(talk(end))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    host.world.network.listen(host, PORT, on_connect)
    async with asyncio.TaskGroup() as group:
        group.create_task(ask_for_ever(host))
        for every_s in (0.3, 0.7):
            group.create_task(tick(every_s))


async def tick(every_s):
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), every_s)
        tasks = [asyncio.ensure_future(asyncio.sleep(n / 100)) for n in range(3)]
        done, pending = await asyncio.wait(tasks, timeout=0.015)
        for task in pending:
            task.cancel()
        for task in {*done, *pending}:
            await asyncio.gather(task, return_exceptions=True)


async def ask_for_ever(host):
    draws = host.draws("ask")
    while True:
        target = draws.choice([name for name in HOSTS if name != host.name])
        try:
            async with asyncio.timeout(2):
                end = await host.world.network.connect(host, target, PORT)
                inbox = Inbox()
                end.attach(inbox)
                for number in range(draws.between(1, 5)):
                    end.send(b"%s %d" % (host.name.encode(), number))
                    operation = host.world.history.invoke(host.name, "echo", number=number)
                    operation.value = await inbox.frames.get()
                end.close()
        except (TimeoutError, PoolError):
            await asyncio.sleep(0.1)
        await asyncio.sleep(draws.random() / 10)


async def scenario(world):
    for name in HOSTS:
        world.host(name, boot=serve, drift_ppm=world.draws("drift").between(-200, 200))
        world.hosts[name].disk.faults = DiskFaults(sync_error_ratio=0.01, short_write_ratio=0.1)
    budget = Budget(max_strikes=12, max_down=2, chaos_ms=3_000, calm_ms=1_000, max_lasts_ms=1_000)
    await carry_out(world, draw_plan(world.draws("plan"), HOSTS, budget))
    with contextlib.suppress(HostCrashed):
        await world.hosts["a"].run(asyncio.sleep(1))


def run(seed, chooser="seeded", *, keep_trace=False):
    """The world after its run."""
    world = World(seed, chooser=CHOOSERS[chooser], keep_trace=keep_trace, limit_s=60)
    world.run(scenario)
    return world


if __name__ == "__main__":
    world = run(int(sys.argv[1]), *sys.argv[2:])
    print(world.trace.digest(), world.trace.executed_count, len(world.history.operations))
