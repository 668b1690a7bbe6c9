"""``rdma://`` on real verbs keeps the promises of every fabric, over both bindings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pykvpool.fabric.rdma.settings import RdmaSettings
from pykvpool.fabric.verbs import Verbs
from tests.fabric.bench import Backend, Bench, open_bench
from tests.fabric.conformance import FabricConformance
from tests.rdma.devices import LEFT, RIGHT
from tests.rdma.holding import HoldingVerbs


@pytest.fixture
def backend() -> Backend:
    return Backend("rdma", "rdma", token="open sesame", owner_is_asked=False, on_the_wire=True)


@pytest_asyncio.fixture
async def bench(backend: Backend, tmp_path: Path, verbs: Verbs) -> AsyncIterator[Bench]:
    """The peers have the left device of a rail, the owner the right one."""
    peers = RdmaSettings(verbs=HoldingVerbs(verbs, LEFT))
    owner = RdmaSettings(verbs=HoldingVerbs(verbs, RIGHT))
    async with open_bench(backend, tmp_path, peers, owner) as opened:
        yield opened


class TestRdmaOnRealVerbs(FabricConformance):
    """Nothing to add."""
