"""What is announced of the pool's contents is taken back when it leaves, once."""

from types import SimpleNamespace

from pykvpool.host.port import Removed
from pykvpool.model.keys import Scope
from pykvpool_connector.vllm.scheduler.announce import Announcer


class Maker:
    def removed(self, rule, key):
        return rule.group, key


def scope(adapter: str, group: int, rank: int = 0) -> Scope:
    return Scope("n", f"model+{adapter}", f"tp{rank}", group)


IDENTITY = SimpleNamespace(
    groups=(SimpleNamespace(group=0), SimpleNamespace(group=1)),
    scopes=lambda adapter, group: (scope(adapter, group, 0), scope(adapter, group, 1)),
)


def saved(*names) -> SimpleNamespace:
    return SimpleNamespace(report=SimpleNamespace(complete=True), notices=[], names=names)


def test_scopes_are_watched_before_anything_can_leave_them():
    watched = []
    announcer = Announcer(IDENTITY, Maker(), watched.extend)
    assert watched == [scope("", group, rank) for group in (0, 1) for rank in (0, 1)]
    announcer.saved(saved(("lora", 1, b"a")))
    announcer.saved(saved(("lora", 1, b"b"), ("", 0, b"c")))
    assert watched[4:] == [scope("lora", 1, 0), scope("lora", 1, 1)]
    Announcer(IDENTITY, None, watched.extend)
    assert len(watched) == 6, "nobody listens: nothing is watched"


def test_a_block_is_taken_back_once_however_many_ranks_lose_their_part():
    announcer = Announcer(IDENTITY, Maker(), lambda scopes: None)
    announcer.saved(saved(("", 0, b"a"), ("", 0, b"b"), ("", 1, b"a")))
    announcer.removed(Removed(scope("", 0, 1), (b"a", b"unknown")))
    announcer.removed(Removed(scope("", 0, 0), (b"a",)))
    assert announcer.take() == [(0, b"a")]


def test_when_sight_of_a_scope_was_lost_all_of_it_is_taken_back():
    announcer = Announcer(IDENTITY, Maker(), lambda scopes: None)
    announcer.saved(saved(("", 0, b"a"), ("", 0, b"b"), ("", 1, b"a"), ("lora", 0, b"a")))
    announcer.removed(Removed(scope("", 0, 1), ()))
    assert announcer.take() == [(0, b"a"), (0, b"b")]
    announcer.removed(Removed(scope("", 0, 0), ()))
    assert announcer.take() == []
