"""The raw figures of a round: those that the plan's cases are divided by, and no others."""

from __future__ import annotations

from pykvpool.cli.bench.cases import Plan
from pykvpool.cli.bench.perftest import Perftest
from pykvpool.cli.bench.raw import Memcpy, Sender
from pykvpool.cli.bench.results import yardsticks
from pykvpool.cli.processes import Children
from pykvpool.errors import InternalError


class Raw:
    """What it takes to measure them; a part that no case asks for is None."""

    def __init__(
        self, names: list[str], memcpy: Memcpy | None, sender: Sender | None, perftest: Perftest | None
    ) -> None:
        #: In the order of the cases that need them.
        self._names = names
        self._memcpy = memcpy
        self._sender = sender
        self._perftest = perftest

    @classmethod
    async def start(cls, plan: Plan, children: Children) -> Raw:
        """Raises `NotSupported` where a tool is missing."""
        names = dict.fromkeys(name for case in plan.transfers for name in yardsticks(case))
        return cls(
            list(names),
            Memcpy() if "memcpy" in names else None,
            await Sender.start(children) if "loopback" in names else None,
            Perftest.between(plan.rdma_device, plan.rdma_node_device) if "rdma" in plan.fabrics else None,
        )

    async def rates(self, seconds: float) -> dict[str, float]:
        """Yardstick -> bytes per second, measured now."""
        return {name: await self._rate(name, seconds) for name in self._names}

    async def _rate(self, name: str, seconds: float) -> float:
        if name == "memcpy" and self._memcpy is not None:
            return self._memcpy.rate(seconds)
        if name == "loopback" and self._sender is not None:
            return await self._sender.rate()
        if self._perftest is None:
            raise InternalError(f"no yardstick is called {name}")
        tool, _, size = name.partition(" ")
        return await self._perftest.rate(tool, int(size))
