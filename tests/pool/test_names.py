"""Names of sessions: a node and a client may be called alike."""

from __future__ import annotations


async def test_a_client_named_like_a_node_does_not_push_it_out(make_cluster):
    async with make_cluster(fabrics=("tcp",)) as cluster:
        await cluster.node("alpha")
        client = await cluster.client("alpha")
        await client.put("k", b"v")
        assert await client.get("k") == b"v"
        assert sorted(session.role for session in (await client.state()).sessions) == ["client", "node"]
