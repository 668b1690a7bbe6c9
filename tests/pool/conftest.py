"""Pools for tests, one per fabric where a test says nothing else."""

from __future__ import annotations

import pytest

from tests.pool.cluster import Cluster


@pytest.fixture(params=["inproc", "tcp", "shm"])
async def pool(request, tmp_path):
    """A master, one node of 16 MiB and nothing else, over each fabric in turn."""
    async with Cluster(tmp_path, fabrics=(request.param,)) as cluster:
        await cluster.node("n0")
        yield cluster


@pytest.fixture
def make_cluster(tmp_path):
    """`async with make_cluster(...) as cluster`."""

    def make(**options):
        return Cluster(tmp_path, **options)

    return make
