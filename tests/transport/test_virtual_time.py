"""Master and sessions run unchanged on a loop whose time is a number: delays are the loop's, chance is the seed's."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from pykvpool.core.config import CoreConfig
from pykvpool.core.master import MasterCore
from pykvpool.master import MasterServer
from pykvpool.model.commands import ClusterState, Exists, Intern
from pykvpool.model.keys import Scope
from pykvpool.model.replies import State
from pykvpool.runtime import Runtime, real_runtime
from pykvpool.transport.control import ControlSession
from tests.transport.faults import faulty_transports


class VirtualLoop(asyncio.SelectorEventLoop):
    """Waiting costs nothing: where nothing is ready, time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())
        self.now_s = 0.0
        self._select = self._selector.select
        self._selector.select = self._jump

    def _jump(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing is left that could happen"
        self.now_s += timeout
        return self._select(0)

    def time(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return int(self.now_s * 1_000)


def run(scenario: Coroutine[Any, Any, Any], loop: VirtualLoop) -> Any:
    try:
        return loop.run_until_complete(scenario)
    finally:
        loop.close()


async def an_hour(loop: VirtualLoop, seed: int) -> tuple[list[str], State]:
    """A client is idle for an hour; its connection is cut every ten minutes. Returns what was sent, and the end."""
    runtime: Runtime = replace(real_runtime(), clock=loop, random=random.Random(seed))
    transports, faults = faulty_transports()
    sent: list[str] = []
    faults.on_near_send = lambda frame: sent.append(f"{loop.now_s:.6f} {frame.hex()}")
    server = MasterServer(MasterCore(CoreConfig(), epoch=1), ["faulty://m"], runtime, transports=transports)
    await server.start()
    session = await ControlSession.connect(
        server.addresses, name="idle", role="client", runtime=runtime, transports=transports
    )
    scope = (await session.call(Intern((Scope(),)))).scopes[0]
    for _ in range(6):
        await asyncio.sleep(600)
        faults.cut()
        await session.call(Exists(scope, (b"k",)))
    state = await session.call(ClusterState())
    await session.close()
    await server.close()
    runtime.offload.close()
    return sent, state


def test_an_hour_of_idleness_and_cut_connections_is_one_session() -> None:
    loop = VirtualLoop()
    sent, state = run(an_hour(loop, seed=1), loop)
    assert loop.now_s >= 3_600
    assert state.counters["sessions_opened_total"] == 1
    assert state.counters["sessions_expired_total"] == 0
    beats = sum(1 for line in sent if b"heartbeat".hex() in line)
    assert 3_600 / 10 * 1.5 < beats < 3_600 / 10 * 4


def test_the_same_seed_gives_the_same_bytes_at_the_same_times() -> None:
    first, second, other = VirtualLoop(), VirtualLoop(), VirtualLoop()
    sent, _ = run(an_hour(first, seed=7), first)
    assert sent == run(an_hour(second, seed=7), second)[0]
    assert sent != run(an_hour(other, seed=8), other)[0]
