"""Both bindings on Soft-RoCE keep what the seam promises: the suite that the fake passes too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest_asyncio

from pykvpool.fabric.verbs.protocol import Verbs
from tests.fabric.verbs_conformance import VerbsConformance
from tests.fabric.verbs_rig import Rig, rig_of
from tests.rdma.devices import LEFT, RIGHT, set_port


@pytest_asyncio.fixture
async def rig(verbs: Verbs) -> AsyncIterator[Rig]:
    async with rig_of(verbs, LEFT, RIGHT, partial(set_port, LEFT)) as rig:
        yield rig


class TestVerbsBindings(VerbsConformance):
    """Nothing to add."""


def test_the_binding_is_the_one_asked_for(verbs: Verbs) -> None:
    assert type(verbs).__module__.endswith(f"{verbs.name}_binding")
    assert verbs.version
