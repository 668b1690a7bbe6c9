"""P1, P2, P3, P5, P6: whose bytes are whose, through the master's commands, against `SpaceModel`.

Two nodes, three segments, objects of several sizes with one or two copies, chains, pins and leases; writers that fail
half way, say so or not, run out of time, are superseded, leave in order; nodes that fence and remount. After every
step the master and the model agree on what is readable, what is free and what is in quarantine, to the byte.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pykvpool.model import commands
from pykvpool.model.ids import PutId
from pykvpool.model.instructions import Fence
from pykvpool.model.objects import ObjectInfo, Pin
from pykvpool.model.replies import Existing, Located, PutGrant
from tests.core.driver import Peer
from tests.properties.budgets import budget
from tests.properties.core_world import evicted_since, kind_of, outcome, segments_of, unchecked_world
from tests.properties.space_model import OPEN, READABLE, Holding, Lease, SpaceModel, overlap

LEASE_MS = 10_000
PUT_MS = 20_000
MOUNTS = (("n0", 384), ("n0", 256), ("n1", 448))
KEYS = tuple(b"%c" % letter for letter in b"abcdefgh")
#: Sizes that fill one to four units of the alignment, most of them not to the byte.
SIZES = {key: (64, 100, 130, 256)[number % 4] for number, key in enumerate(KEYS)}
#: Two chains of four.
PARENTS = {key: (KEYS[number - 1] if number % 4 else None) for number, key in enumerate(KEYS)}

keys = st.sampled_from(KEYS)
numbers = st.integers(0, 1_000)
masks = st.integers(0, 3)


class SpaceAgainstModel(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(["lru", "fifo"]), filled=st.lists(keys, max_size=6, unique=True))
    def begin(self, policy: str, filled: list[bytes]) -> None:
        self.world = unchecked_world(policy=policy, lease_ms=LEASE_MS, put_ttl_ms=PUT_MS)
        self.model = SpaceModel()
        self.nodes = {name: self.world.node(name) for name, _ in MOUNTS}
        for name, size in MOUNTS:
            self.mount(name, size)
        self.clients = [self.world.client("c0"), self.world.client("c1")]
        self.observer = self.world.client("observer")
        self.leases: list[Lease] = []
        for key in filled:
            self.put_whole(0, key, 1, Pin.NONE)

    def mount(self, name: str, size: int) -> None:
        self.model.segments[self.nodes[name].mount(size)] = (size, name)

    def pick(self, things: list[Any], number: int) -> Any:
        return things[number % len(things)]

    def open_puts(self) -> list[Holding]:
        return [each for each in self.model.holdings if each.state == OPEN]

    def writer_of(self, put_id: PutId) -> Peer | None:
        """The client that was granted it, if it still lives."""
        return next((each for each in self.clients if each.id == self.model.grants[put_id][0]), None)

    # -- writing -----------------------------------------------------------------------------------------------------

    @rule(number=numbers, key=keys, replicas=st.integers(1, 2), pin=st.sampled_from([Pin.NONE, Pin.NONE, *Pin]))
    def put_start(self, number: int, key: bytes, replicas: int, pin: Pin) -> None:
        self.start(number, key, replicas, pin)

    def start(self, number: int, key: bytes, replicas: int, pin: Pin) -> PutId | None:
        """The put_id of a grant."""
        client, model, before = self.pick(self.clients, number), self.model, len(self.world.facts)
        size, readable = SIZES[key], model.find(key, READABLE)
        (entry,) = client.put_start(key, size=size, parents=(PARENTS[key],), replicas=replicas, pin=pin, wait_ms=0)
        evicted = evicted_since(self.world, before)
        if readable is not None:
            assert entry == Existing(readable.put_id)
            assert not evicted
            readable.pin = max(readable.pin, pin)
        elif model.find(key, OPEN) is not None:
            assert kind_of(entry) == "NotReady"
        elif not isinstance(entry, PutGrant):
            assert kind_of(entry) == "PoolFull"
            assert not evicted, "a failed eviction changes nothing"
            assert not model.nodes_with_room(size, model.all_that_may_go())
        else:
            self.check_grant(entry, size, replicas, evicted)
            deadline = self.world.now + PUT_MS
            copies = dict(enumerate(entry.extents))
            model.grants[entry.put_id] = (client.id, entry.extents)
            model.holdings.append(Holding(entry.put_id, key, PARENTS[key], pin, client.id, OPEN, copies, deadline))
            return entry.put_id
        return None

    def check_grant(self, grant: PutGrant, size: int, replicas: int, evicted: list[bytes]) -> None:
        model, extents = self.model, grant.extents
        assert grant.put_id not in model.grants, "a put_id is never reused"
        assert not evicted or len(model.nodes_with_room(size, [])) < replicas, "there was room"
        if len(extents) < replicas:
            able = model.nodes_with_room(size, model.all_that_may_go())
            assert len(able) == len(extents), "as many copies as can be had"
        victims: list[Holding] = []
        for gone in evicted:
            victim = model.find(gone, READABLE)
            assert victim is not None and model.may_go(victim, victims), gone
            victims.append(victim)
        if replicas == 1 and all(len(victim.copies) == 1 for victim in victims):
            self.check_that_each_was_needed(victims, grant)
        for victim in victims:
            model.remove(victim)
        nodes = [model.segments[extent.segment][1] for extent in extents]
        assert len(set(nodes)) == len(nodes) <= replicas
        for extent in extents:
            assert extent.offset >= 0 and extent.offset + extent.length <= model.segments[extent.segment][0]
            assert extent.length == size
            assert not any(overlap(extent, other) for other in model.taken()), "somebody holds these bytes"

    def check_that_each_was_needed(self, victims: list[Holding], grant: PutGrant) -> None:
        """Its bytes were taken, or it had to go before an ancestor whose bytes were."""
        needed: set[bytes | None] = set()
        for victim in reversed(victims):
            if any(overlap(copy, extent) for copy in victim.copies.values() for extent in grant.extents):
                needed.add(victim.key)
            assert victim.key in needed or self.has_needed_ancestor(victim, needed), victim.key

    def has_needed_ancestor(self, victim: Holding, needed: set[bytes | None]) -> bool:
        parent = victim.parent
        while parent is not None and parent not in needed:
            parent = PARENTS[parent]
        return parent is not None

    @rule(number=numbers, key=keys, replicas=st.integers(1, 2), pin=st.sampled_from([Pin.NONE, Pin.NONE, *Pin]))
    def put_whole(self, number: int, key: bytes, replicas: int, pin: Pin) -> None:
        put_id = self.start(number, key, replicas, pin)
        if put_id is not None:
            self.end(put_id, 0b11, 0)

    @rule(number=numbers, key=keys, landed=masks, uncertain=masks)
    def put_that_lands_in_part(self, number: int, key: bytes, landed: int, uncertain: int) -> None:
        put_id = self.start(number, key, 2, Pin.NONE)
        if put_id is not None:
            self.end(put_id, landed, uncertain)

    @precondition(lambda self: self.open_puts())
    @rule(number=numbers, landed=masks, uncertain=masks)
    def put_end(self, number: int, landed: int, uncertain: int) -> None:
        self.end(self.pick(self.open_puts(), number).put_id, landed, uncertain)

    def end(self, put_id: PutId, landed: int, uncertain: int) -> None:
        model, put = self.model, self.model.by_put(put_id)
        granted = model.grants[put_id][1]
        landed, uncertain = landed & (1 << len(granted)) - 1, uncertain & (1 << len(granted)) - 1
        good = {i: extent for i, extent in put.copies.items() if landed >> i & 1 and not uncertain >> i & 1}
        stray = {i for i in put.copies if uncertain >> i & 1}
        command = commands.PutEnd((put_id,), (7,), (landed,), (uncertain,))
        assert outcome(self.writer_of(put_id), command) == ("fine" if good else "TransferFailed")
        model.close(put, stray, True)
        if good:
            put.copies, put.state = good, READABLE
            model.holdings.append(put)

    @precondition(lambda self: self.open_puts())
    @rule(number=numbers, uncertain=masks)
    def put_revoke(self, number: int, uncertain: int) -> None:
        put = self.pick(self.open_puts(), number)
        uncertain &= (1 << len(self.model.grants[put.put_id][1])) - 1
        assert outcome(self.writer_of(put.put_id), commands.PutRevoke((put.put_id,), (uncertain,))) == "fine"
        self.model.close(put, {i for i in put.copies if uncertain >> i & 1}, True)

    @precondition(lambda self: self.model.grants)
    @rule(number=numbers, uncertain=masks, revoke=st.booleans())
    def a_writer_ends_a_put_that_is_over(self, number: int, uncertain: int, revoke: bool) -> None:
        """Too late to change anything, and still the writer's word that it has drained."""
        put_id = self.pick(list(self.model.grants), number)
        holding, writer = self.model.by_put(put_id), self.writer_of(put_id)
        if writer is None or (holding is not None and holding.state == OPEN):
            return
        expected = "fine" if holding is not None and not revoke else "StalePut"
        assert outcome(writer, self.ending(put_id, uncertain, revoke)) == expected
        self.model.drained(put_id, uncertain)

    @precondition(lambda self: self.model.grants)
    @rule(number=numbers, uncertain=masks, revoke=st.booleans())
    def another_client_ends_the_put(self, number: int, uncertain: int, revoke: bool) -> None:
        """Nobody but its writer can, and nothing has changed."""
        put_id = self.pick(list(self.model.grants), number)
        owner = self.model.grants[put_id][0]
        stranger = next(each for each in self.clients if each.id != owner)
        is_known = self.model.by_put(put_id) is not None or any(s.put_id == put_id for s in self.model.strays)
        expected = "NotOwner" if is_known else "StalePut"
        assert outcome(stranger, self.ending(put_id, uncertain, revoke)) == expected

    def ending(self, put_id: PutId, uncertain: int, revoke: bool) -> commands.Command:
        if revoke:
            return commands.PutRevoke((put_id,), (uncertain,))
        return commands.PutEnd((put_id,), (7,), (1,), (uncertain,))

    # -- reading -----------------------------------------------------------------------------------------------------

    @rule(number=numbers, chosen=st.lists(keys, min_size=1, max_size=3, unique=True))
    def read(self, number: int, chosen: list[bytes]) -> None:
        client, model = self.pick(self.clients, number), self.model
        located = client.ask(commands.GetReplicas(self.world.scope, tuple(chosen)), Located)
        named = {segment.segment for segment in located.segments}
        lease = None if located.lease is None else Lease(located.lease, self.world.now + LEASE_MS, client.id)
        for key, info in zip(chosen, located.objects, strict=True):
            holding = model.find(key, READABLE)
            if holding is None:
                assert kind_of(info) == ("NotReady" if model.find(key, OPEN) else "KeyNotFound")
                continue
            assert isinstance(info, ObjectInfo)
            assert (info.put_id, info.size_bytes) == (holding.put_id, SIZES[key])
            assert info.extents == tuple(holding.copies.values())
            assert {extent.segment for extent in info.extents} <= named
            holding.leases[lease.id] = lease
        if lease is not None:
            self.leases.append(lease)

    def peer_of(self, lease: Lease) -> Peer | None:
        return next((each for each in self.clients if each.id == lease.session), None)

    @precondition(lambda self: self.leases)
    @rule(number=numbers)
    def release(self, number: int) -> None:
        lease = self.pick(self.leases, number)
        self.leases.remove(lease)
        peer = self.peer_of(lease)
        if peer is not None:
            peer.release(lease.id)
            self.model.end_lease(lease.id)

    @precondition(lambda self: self.leases)
    @rule(number=numbers, late=st.booleans())
    def renew(self, number: int, late: bool) -> None:
        """In time it lives on; a moment too late it never does, even if nobody has noticed the moment yet."""
        lease = self.pick(self.leases, number)
        peer = self.peer_of(lease)
        if peer is None:
            return
        if late:
            self.world.now = max(self.world.now, lease.expires_at)
        is_alive = lease.expires_at > self.world.now
        assert outcome(peer, commands.Renew((lease.id,))) == ("fine" if is_alive else "LeaseExpired")
        if is_alive:
            lease.expires_at = self.world.now + LEASE_MS
        self.time_passed()

    @rule(key=keys, force=st.booleans())
    def remove(self, key: bytes, force: bool) -> None:
        holding = self.model.find(key, READABLE)
        is_held = holding is not None and (holding.leases or holding.pin == Pin.HARD)
        expected = "KeyNotFound" if holding is None else "Leased" if is_held and not force else "fine"
        assert outcome(self.observer, commands.Remove(self.world.scope, (key,), force)) == expected
        if expected == "fine":
            self.model.remove(holding)

    @rule(number=numbers, key=keys)
    def remove_what_somebody_reads(self, number: int, key: bytes) -> None:
        if self.model.find(key, READABLE) is not None:
            self.read(number, [key])
            self.remove(key, True)

    @rule(key=keys, pin=st.sampled_from(list(Pin)))
    def set_pin(self, key: bytes, pin: Pin) -> None:
        holding = self.model.find(key, READABLE)
        expected = "KeyNotFound" if holding is None else "fine"
        assert outcome(self.observer, commands.SetPin(self.world.scope, (key,), pin)) == expected
        if holding is not None:
            holding.pin = pin

    # -- time, and the ends of things --------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, LEASE_MS // 2, LEASE_MS, PUT_MS]))
    def time_passes(self, ms: int) -> None:
        self.world.advance(ms)
        self.time_passed()

    def time_passed(self) -> None:
        self.world.settle()
        self.model.time_is(self.world.now)
        self.leases = [lease for lease in self.leases if lease.expires_at > self.world.now]

    @rule(number=st.integers(0, 1), in_order=st.booleans(), rare=st.integers(0, 2))
    def a_client_ends(self, number: int, in_order: bool, rare: int) -> None:
        """It says goodbye, or is pushed out by its successor with nobody knowing what it still does."""
        if rare:
            return
        client = self.clients[number]
        if in_order:
            client.fine(commands.Goodbye())
        self.clients[number] = self.world.client(client.name)
        self.world.settle()
        self.model.session_over(client.id, in_order)
        self.leases = [lease for lease in self.leases if lease.session != client.id]

    @rule(name=st.sampled_from(["n0", "n1"]))
    def a_node_fences_whom_it_is_told_to(self, name: str) -> None:
        node = self.nodes[name]
        while fences := node.told(Fence):
            for fence in fences:
                node.fine(commands.Fenced(fence.session, fence.segment, fence.number))
        self.model.fenced(name)

    @rule(number=numbers, rare=st.integers(0, 2))
    def a_node_remounts(self, number: int, rare: int) -> None:
        if rare:
            return
        segment = self.pick(list(self.model.segments), number)
        size, name = self.model.segments[segment]
        self.nodes[name].fine(commands.Unmount(segment))
        self.world.settle()
        self.model.unmounted(segment)
        self.mount(name, size)

    # -- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def the_books_agree_to_the_byte(self) -> None:
        if not hasattr(self, "observer"):
            return
        model = self.model
        assert self.observer.exists(*KEYS) == [model.find(key, READABLE) is not None for key in KEYS]
        states = segments_of(self.observer)
        assert set(states) == set(model.segments)
        for segment, state in states.items():
            assert (state.free_bytes, state.quarantined_bytes) == (
                model.free_bytes(segment), model.quarantined_bytes(segment),
            ), segment  # fmt: skip
            assert state.free_bytes + state.used_bytes + state.quarantined_bytes == state.capacity_bytes


TestSpaceAgainstModel = SpaceAgainstModel.TestCase
TestSpaceAgainstModel.settings = budget(500, steps=50)
