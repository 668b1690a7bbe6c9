"""A pool of separate processes on the guest's devices: a master, nodes on the right of the rails, a client on the left.

The client is in the test's own process, so that a test can hold its devices; everybody else is a process of its own.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from pykvpool.cli.processes import Child, Children
from pykvpool.client import Client
from pykvpool.fabric.rdma.settings import RdmaSettings
from pykvpool.fabric.verbs import Verbs
from tests.rdma.holding import HoldingVerbs

#: Emulated processors are slow: nothing but a hang takes this long.
TIMEOUT_S = 60.0
MIB = 1 << 20


def data_of(seed: int, size: int = MIB) -> bytes:
    return random.Random(seed).randbytes(size)


@dataclass
class Processes:
    children: Children
    master: str
    stack: contextlib.AsyncExitStack
    nodes: dict[str, Child] = field(default_factory=dict)

    async def node(self, name: str, *devices: str, fabrics: Sequence[str] = ("rdma", "tcp")) -> Child:
        options = [option for fabric in fabrics for option in ("--fabric", fabric)]
        options += [option for device in devices for option in ("--rdma-device", device)]
        child = await self.children.start(
            f"node {name}", "pykvpool", "node", "--supervised", "--master", self.master, "--name", name,
            "--segment-size", "32MiB", *options,
        )  # fmt: skip
        await child.announcement()
        self.nodes[name] = child
        return child

    async def client(
        self, verbs: Verbs, *devices: str, fabrics: Sequence[str] = ("rdma",), **changes: object
    ) -> Client:
        """One that sees `devices` only, and can be held."""
        settings = RdmaSettings(verbs=HoldingVerbs(verbs, *devices))
        client = await Client.connect(
            self.master, fabrics=fabrics, rdma=settings, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S, **changes
        )
        return await self.stack.enter_async_context(client)


@contextlib.asynccontextmanager
async def processes() -> AsyncIterator[Processes]:
    async with contextlib.AsyncExitStack() as stack:
        children = await stack.enter_async_context(Children())
        master = await children.start("master", "pykvpool", "master", "--supervised", "--listen", "tcp://127.0.0.1:0")
        announced = await master.announcement()
        yield Processes(children, announced.addresses[0], stack)
