"""Sessions that watch scopes are told what leaves them, and nothing else."""

from __future__ import annotations

import pytest

from pykvpool.core import watching
from pykvpool.errors import Overloaded
from pykvpool.model import commands
from pykvpool.model.instructions import BlocksRemoved
from pykvpool.model.keys import Scope
from pykvpool.model.replies import Done, Interned
from tests.core.driver import Peer, World


def told(peer: Peer) -> list[BlocksRemoved]:
    found = [each for each in peer.instructions if isinstance(each, BlocksRemoved)]
    peer.instructions.clear()
    return found


def test_a_watcher_is_told_of_evictions_removals_and_losses_of_its_scopes(world: World) -> None:
    node = world.node("n", 640)
    writer, watcher, other = world.client("writer"), world.client("watcher"), world.client("other")
    elsewhere = writer.ask(commands.Intern((Scope("other"),)), Interned).scopes[0]
    watcher.ask(commands.Watch((world.scope,)), Done)
    watcher.ask(commands.Watch((world.scope,)), Done)
    other.ask(commands.Watch((elsewhere,)), Done)

    writer.put(b"a", b"b")
    writer.put(b"x", scope=elsewhere)
    writer.remove(b"a")
    assert told(watcher) == [BlocksRemoved(world.scope, (b"a",))]
    for number in range(10):
        writer.put(b"new-%d" % number)
    assert b"b" in {key for each in told(watcher) for key in each.hashes}, "evicted"
    assert told(other) == [BlocksRemoved(elsewhere, (b"x",))]
    left = {b"new-%d" % number for number in range(10) if writer.exists(b"new-%d" % number)[0]}
    told(watcher)
    node.ask(commands.Goodbye(), Done)
    world.settle()
    assert {key for each in told(watcher) for key in each.hashes} == left != set(), "lost with their node"
    assert told(writer) == []


def test_a_watcher_that_left_is_forgotten(world: World) -> None:
    world.node("n", 640)
    writer, watcher = world.client("writer"), world.client("watcher")
    watcher.ask(commands.Watch((world.scope,)), Done)
    watcher.ask(commands.Goodbye(), Done)
    writer.put(b"a")
    writer.remove(b"a")
    assert told(watcher) == []
    assert not world.core._context.watching.by_scope


def test_p12_no_session_watches_without_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_WATCHED", 2)
    client = world.client()
    scopes = client.ask(commands.Intern(tuple(Scope(f"s{i}") for i in range(3))), Interned).scopes
    client.ask(commands.Watch(scopes[:2]), Done)
    with pytest.raises(Overloaded, match="at most 2"):
        client.ask(commands.Watch(scopes[2:]), Done)
    client.ask(commands.Watch(scopes[1:2]), Done)
