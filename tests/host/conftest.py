"""A pool on a thread, and ports of it that are closed with the test."""

from __future__ import annotations

import pytest

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


@pytest.fixture
def embed(request):
    """`embed(pool, name)`: an engine with an embedded port, closed before the pool ends."""
    ports: list[EmbeddedPort] = []

    def make(pool: Pool, name: str = "engine", **options) -> Engine:
        ports.append(EmbeddedPort(pool.access(name, **options)))
        return Engine(ports[-1])

    yield make
    for port in ports:
        port.close(0.0)
