"""Names of sessions and clusters: a node and a client may be called alike, a cluster need not be named by all."""

from __future__ import annotations

import pytest


async def test_a_client_named_like_a_node_does_not_push_it_out(make_cluster):
    async with make_cluster(fabrics=("tcp",)) as cluster:
        await cluster.node("alpha")
        client = await cluster.client("alpha")
        await client.put("k", b"v")
        assert await client.get("k") == b"v"
        assert sorted(session.role for session in (await client.state()).sessions) == ["client", "node"]


@pytest.mark.parametrize("fabric", ["tcp", "shm"])
async def test_a_node_that_was_told_no_cluster_serves_the_one_it_has_joined(make_cluster, fabric):
    """Else the master counts its memory in, and every put there is refused."""
    async with make_cluster(fabrics=(fabric,), cluster="prod") as cluster:
        await cluster.node("alpha", cluster="")
        client = await cluster.client()
        await client.put("k", b"v")
        assert await client.get("k") == b"v"
