from __future__ import annotations

from tests.core.driver import World


def test_a_block_is_put_found_and_read(world: World) -> None:
    world.node("n1", 4096)
    client = world.client()
    client.chain(b"a", b"b", b"c")
    assert client.exists(b"a", b"b", b"x", b"c") == [1, 1, 0, 1]
    client.release(client.lease(b"a", b"c"))
