"""A pool on a thread, and ports of it that are closed with the test."""

from __future__ import annotations

import pytest

from pykvpool.host.agent.port import AgentPort
from pykvpool.host.embedded import EmbeddedPort
from tests.host.stage import Engine, Pool


@pytest.fixture
def make_pool(tmp_path):
    """`make_pool(...)`: a `Pool` that is not started."""
    made: list[Pool] = []

    def make(**options) -> Pool:
        made.append(Pool(tmp_path, **options))
        return made[-1]

    yield make
    for pool in made:
        pool.stop()


@pytest.fixture
def pool(make_pool):
    return make_pool().start()


@pytest.fixture(params=["embedded", "node"])
def attach(request, make_pool):
    """`attach(pool, name)`: an engine whose port is a thread of its own, or its host's node; both do the same."""
    ports = []

    def make(pool: Pool, name: str = "engine") -> Engine:
        if request.param == "embedded":
            ports.append(EmbeddedPort(pool.access(name)))
        else:
            ports.append(AgentPort(name, socket=pool.agent().path))
        return Engine(ports[-1])

    yield make
    for port in ports:
        port.close(0.0)
