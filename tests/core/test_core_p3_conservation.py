"""P3: free + used + quarantined = capacity in every segment, after every step; extents never overlap.

A ledger outside the core keeps its own books from the facts alone, and compares them with what the master reports.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pykvpool.model import commands, facts
from pykvpool.model.objects import Extent
from pykvpool.model.replies import PutGrant, State
from tests.core.driver import World

ALIGNMENT = 64
CAPACITY = 64 * 40


class Ledger:
    """Who holds which bytes of each segment, as the facts tell."""

    def __init__(self) -> None:
        self.capacity: dict[int, int] = {}
        #: (segment, offset) -> (rounded length, "used" or "quarantined", put_id)
        self.held: dict[tuple[int, int], tuple[int, str, int]] = {}

    def take(self, extent: Extent, what: str, put_id: int) -> None:
        length = -(-extent.length // ALIGNMENT) * ALIGNMENT
        assert extent.offset % ALIGNMENT == 0
        assert extent.offset >= 0 and extent.offset + length <= self.capacity[extent.segment]
        for (segment, offset), (other, *_) in self.held.items():
            apart = segment != extent.segment or offset + other <= extent.offset or extent.offset + length <= offset
            assert apart, f"{extent} overlaps {other} bytes at {offset}"
        self.held[extent.segment, extent.offset] = (length, what, put_id)

    def release(self, put_id: int, which: Callable[[int, str], bool] = lambda segment, what: True) -> None:
        for (segment, offset), (_, what, owner) in list(self.held.items()):
            if owner == put_id and which(segment, what):
                del self.held[segment, offset]

    def note(self, fact: facts.Fact) -> None:
        match fact:
            case facts.SegmentMounted():
                self.capacity[fact.segment] = fact.size_bytes // ALIGNMENT * ALIGNMENT
            case facts.SegmentRemoved():
                del self.capacity[fact.segment]
                self.held = {place: held for place, held in self.held.items() if place[0] != fact.segment}
            case facts.PutOpened():
                for extent in fact.extents:
                    self.take(extent, "used", fact.put_id)
            case facts.ObjectCommitted():
                self.settle(fact.put_id, fact.landed, fact.quarantined)
            case facts.PutClosed():
                self.settle(fact.put_id, (), fact.quarantined)
            case facts.QuarantineEnded():
                self.release(fact.put_id, lambda segment, what: segment == fact.segment and what == "quarantined")
            case facts.ObjectRemoved():
                if not fact.lingering:
                    self.release(fact.put_id, lambda segment, what: what == "used")
            case facts.ExtentsFreed():
                self.release(fact.put_id, lambda segment, what: what == "used")
            case facts.ReplicaLost():
                self.release(fact.put_id, lambda segment, what: segment == fact.segment)

    def settle(self, put_id: int, used: tuple[Extent, ...], quarantined: tuple[Extent, ...]) -> None:
        self.release(put_id)
        for extent in used:
            self.take(extent, "used", put_id)
        for extent in quarantined:
            self.take(extent, "quarantined", put_id)

    def total(self, segment: int, what: str) -> int:
        return sum(length for (place, _), (length, kind, _) in self.held.items() if place == segment and kind == what)


def audit(world: World, ledger: Ledger, seen: int, client: object) -> int:
    """Bring the books up to date and compare; returns how many facts they hold."""
    state = client.ask(commands.ClusterState(), State)  # type: ignore[attr-defined]
    for fact in world.facts[seen:]:
        ledger.note(fact)
    for segment in state.segments:
        assert segment.free_bytes + segment.used_bytes + segment.quarantined_bytes == segment.capacity_bytes
        assert segment.capacity_bytes == ledger.capacity[segment.segment]
        assert segment.used_bytes == ledger.total(segment.segment, "used")
        assert segment.quarantined_bytes == ledger.total(segment.segment, "quarantined")
    return len(world.facts)


@pytest.mark.parametrize("seed", range(8))
def test_p3_the_books_balance_through_any_history(new_world: Callable[..., World], seed: int) -> None:
    world, draw, ledger = new_world(), random.Random(seed), Ledger()
    nodes = {name: world.node(name, CAPACITY) for name in ("n0", "n1", "n2")}
    client, reader = world.client(), world.client("reader")
    seen, number = 0, 0
    open_puts: list[PutGrant] = []
    leases: list[int] = []
    for step in range(120):
        if not client.is_alive():
            client, open_puts = world.client(), []
        if not reader.is_alive():
            reader, leases = world.client("reader"), []
        action = draw.choice(
            ["put", "put", "put", "open", "end", "revoke", "lease", "release", "remove", "node", "late"]
        )
        keys = [b"k%d" % draw.randrange(30) for _ in range(3)]
        if action in ("put", "open"):
            number += 1
            entry = client.put_start(b"k%d" % number, size=draw.randrange(1, 400), replicas=draw.choice([1, 2]),
                                     wait_ms=0)[0]  # fmt: skip
            if isinstance(entry, PutGrant):
                if action == "put":
                    client.put_end(entry.put_id, checksum=draw.choice([7, None]))
                else:
                    open_puts.append(entry)
        elif action in ("end", "revoke") and open_puts:
            put = open_puts.pop(draw.randrange(len(open_puts)))
            mask = (1 << len(put.extents)) - 1
            landed, uncertain = draw.randrange(mask + 1), draw.randrange(mask + 1)
            if action == "end":
                client.ask(commands.PutEnd((put.put_id,), (7,), (landed,), (uncertain & ~landed,)), object)
            else:
                client.ask(commands.PutRevoke((put.put_id,), (uncertain,)), object)
        elif action == "lease":
            located = reader.locate(*keys)
            leases += [located.lease] if located.lease is not None else []
        elif action == "release" and leases:
            reader.release(leases.pop(draw.randrange(len(leases))))
        elif action == "remove":
            client.ask(commands.Remove(world.scope, tuple(dict.fromkeys(keys)), draw.random() < 0.5), object)
        elif action == "node" and step % 10 == 0:
            name = draw.choice(list(nodes))
            nodes[name] = world.node(name, CAPACITY)
        elif action == "late":
            world.idle(draw.choice([10, 1_000, 4_000]), *nodes.values())
        seen = audit(world, ledger, seen, client)
    assert ledger.held, "the history left something behind to balance"
