"""`pykvpool.runtime.Runtime` for a host: its clock, a random stream of its own, and work that takes virtual time.

Shells are given this and cannot tell it from the world's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pykvpool.runtime import Runtime, drain
from pykvpool_sim.clock import NS_PER_S
from pykvpool_sim.draws import Draws
from pykvpool_sim.host import Host

T = TypeVar("T")

#: Says how long a piece of offloaded work takes, in nanoseconds.
Cost = Callable[[Callable[..., object], tuple[object, ...]], int]


class SimOffload:
    """`pykvpool.runtime.Offload`: the function runs inline, at once, or at a drawn moment of the time that it costs.

    As with threads, a cancelled `run` raises only after the function has ended, and buffers are read or written at any
    moment in between.
    """

    def __init__(self, draws: Draws, cost: Cost | None = None) -> None:
        self._draws = draws
        self._cost = cost

    async def run(self, function: Callable[..., T], /, *args: object) -> T:
        if self._cost is None:
            return function(*args)
        cost_ns = self._cost(function, args)
        work = asyncio.ensure_future(self._work(cost_ns, function, args))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await drain(work)
            raise

    async def _work(self, cost_ns: int, function: Callable[..., T], args: tuple[object, ...]) -> T:
        before_ns = self._draws.between(0, cost_ns)
        await asyncio.sleep(before_ns / NS_PER_S)
        result = function(*args)
        await asyncio.sleep((cost_ns - before_ns) / NS_PER_S)
        return result

    def close(self) -> None:
        """There are no threads to stop."""


def sim_runtime(host: Host, cost: Cost | None = None) -> Runtime:
    """The runtime of a host. Its random stream goes on over restarts, so that no two lives draw the same."""
    return Runtime(host.clock, host.draws("runtime"), SimOffload(host.draws("offload"), cost))
