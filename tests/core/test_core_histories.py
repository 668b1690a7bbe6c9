"""Random histories: whatever peers do in whatever order, every invariant holds after every step (`World` validates),
the facts alone rebuild the state, and once everybody lets go nobody waits any more."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pykvpool.errors import KeyNotFound, PoolError
from pykvpool.model import commands
from pykvpool.model.ids import LeaseId, PutId
from pykvpool.model.instructions import Fence
from pykvpool.model.objects import ObjectInfo, Pin
from pykvpool.model.replies import Existing, Pending, PutGrant
from tests.core.driver import Peer, World

KEYS = tuple(bytes([letter]) for letter in b"abcdefghijkl")
SIZES = {key: 64 * (1 + index % 4) for index, key in enumerate(KEYS)}
PARENTS = {key: (None if index % 4 == 0 else KEYS[index - 1]) for index, key in enumerate(KEYS)}

keys = st.sampled_from(KEYS)
some_keys = st.lists(keys, min_size=1, max_size=4).map(tuple)
numbers = st.integers(0, 1 << 16)


class Histories(RuleBasedStateMachine):
    """Two nodes with 512-byte segments, three clients, a dozen keys: everything is always nearly full."""

    slice_objects = 2_000
    new_world = World

    @initialize(policy=st.sampled_from(["lru", "fifo"]))
    def begin(self, policy: str) -> None:
        self.world = self.new_world(
            policy=policy, slice_objects=self.slice_objects, put_ttl_ms=20_000, max_wait_ms=60_000
        )
        self.nodes = [self.world.node("n0", 512), self.world.node("n1", 512)]
        self.clients = [self.world.client(f"c{number}") for number in range(3)]
        self.puts: list[tuple[Peer, PutId]] = []
        self.leases: list[tuple[Peer, LeaseId]] = []
        self.tickets: list[tuple[Peer, Any]] = []
        #: put_id -> key, to know what a reader may get.
        self.key_of: dict[PutId, bytes] = {}

    def client(self, number: int) -> Peer:
        """A live client; one that ended comes back as a new incarnation."""
        position = number % len(self.clients)
        if not self.clients[position].is_alive():
            self.clients[position] = self.world.client(f"c{position}")
        return self.clients[position]

    def node(self, number: int) -> Peer:
        position = number % len(self.nodes)
        if not self.nodes[position].is_alive():
            self.nodes[position] = self.world.node(f"n{position}", 512)
        return self.nodes[position]

    def note(self, client: Peer, key: bytes, entry: object) -> None:
        if isinstance(entry, PutGrant):
            self.puts.append((client, entry.put_id))
            self.key_of[entry.put_id] = key
        elif isinstance(entry, Pending):
            self.tickets.append((client, entry.ticket))
        elif isinstance(entry, Existing):
            assert self.key_of[entry.put_id] == key

    def pick(self, things: list[Any], number: int) -> Any:
        return things[number % len(things)] if things else None

    @rule(
        number=numbers,
        batch=some_keys,
        replicas=st.integers(1, 2),
        strict=st.booleans(),
        wait=st.booleans(),
        pin=st.sampled_from([Pin.NONE, Pin.NONE, Pin.SOFT, Pin.HARD]),
        preferred=st.sampled_from(["", "n0", "n1"]),
    )
    def put_start(
        self, number: int, batch: tuple[bytes, ...], replicas: int, strict: bool, wait: bool, pin: Pin, preferred: str
    ) -> None:
        client = self.client(number)
        entries = client.put_start(
            *batch, size=tuple(SIZES[key] for key in batch), parents=tuple(PARENTS[key] for key in batch),
            replicas=replicas, min_replicas=replicas if strict else 1, wait_ms=10_000 * wait, pin=pin,
            preferred_node=preferred,
        )  # fmt: skip
        for key, entry in zip(batch, entries, strict=True):
            self.note(client, key, entry)

    @rule(number=numbers, batch=some_keys, replicas=st.integers(1, 2))
    def put_whole(self, number: int, batch: tuple[bytes, ...], replicas: int) -> None:
        first = len(self.puts)
        self.put_start(number, batch, replicas, False, False, Pin.NONE, "")
        for put in range(first, len(self.puts)):
            self.put_end(put, 3, 0)

    @rule(number=numbers, landed=st.integers(0, 3), uncertain=st.integers(0, 3))
    def put_end(self, number: int, landed: int, uncertain: int) -> None:
        put = self.pick(self.puts, number)
        if put is None or not put[0].is_alive():
            return
        open_put = self.world.core._context.state.puts.by_id.get(put[1])
        mask = (1 << len(open_put.extents)) - 1 if open_put else 3
        try:
            put[0].put_end(put[1], landed=landed & mask, uncertain=uncertain & mask)
        except PoolError as error:
            assert error.kind in ("TransferFailed", "StalePut"), error

    @rule(number=numbers)
    def put_end_whole(self, number: int) -> None:
        self.put_end(number, 3, 0)

    @rule(number=numbers, uncertain=st.integers(0, 1))
    def put_revoke(self, number: int, uncertain: int) -> None:
        put = self.pick(self.puts, number)
        if put is None or not put[0].is_alive():
            return
        try:
            put[0].put_revoke(put[1], uncertain)
        except PoolError as error:
            assert error.kind == "StalePut", error

    @rule(number=numbers)
    def collect(self, number: int) -> None:
        ticket = self.pick(self.tickets, number)
        if ticket is None or not ticket[0].is_alive():
            return
        tickets = self.world.core._context.waiting.tickets
        wish = tickets[ticket[1]].wish if ticket[1] in tickets else None
        entry = ticket[0].wait(ticket[1])[0]
        if wish is not None and not isinstance(entry, Pending):
            self.tickets.remove(ticket)
            self.note(ticket[0], wish.hash, entry)

    @rule(number=numbers)
    def forget(self, number: int) -> None:
        ticket = self.pick(self.tickets, number)
        if ticket is not None and ticket[0].is_alive():
            self.tickets.remove(ticket)
            ticket[0].fine(commands.PutForget((ticket[1],)))

    @rule(number=numbers)
    def put_whole_chains(self, number: int) -> None:
        self.put_whole(number, KEYS, 1 + number % 2)

    @rule(number=numbers, batch=some_keys)
    def lease(self, number: int, batch: tuple[bytes, ...]) -> None:
        client = self.client(number)
        try:
            located = client.locate(*batch)
        except PoolError as error:
            assert error.kind == "Overloaded", error
            return
        for key, info in zip(batch, located.objects, strict=True):
            if isinstance(info, ObjectInfo):
                assert self.key_of[info.put_id] == key
                assert info.size_bytes == SIZES[key]
        if located.lease is not None:
            self.leases.append((client, located.lease))

    @rule(number=numbers)
    def release(self, number: int) -> None:
        lease = self.pick(self.leases, number)
        if lease is not None and lease[0].is_alive():
            self.leases.remove(lease)
            lease[0].release(lease[1])

    @rule(number=numbers, key=keys, force=st.booleans())
    def remove(self, number: int, key: bytes, force: bool) -> None:
        try:
            self.client(number).remove(key, force)
        except PoolError as error:
            assert error.kind in ("KeyNotFound", "Leased"), error

    @rule(number=numbers, key=keys, pin=st.sampled_from(list(Pin)))
    def pin(self, number: int, key: bytes, pin: Pin) -> None:
        try:
            self.client(number).pin(key, pin)
        except PoolError as error:
            assert error.kind == "KeyNotFound", error

    @rule(number=numbers)
    def match(self, number: int) -> None:
        client = self.client(number)
        matched = client.ask(commands.MatchPrefix(KEYS[:4], (self.world.scope,)), object)
        assert matched.count == [*client.exists(*KEYS[:4]), 0].index(0)

    @rule(number=numbers)
    def node_answers_fences(self, number: int) -> None:
        node = self.node(number)
        for fence in node.told(Fence):
            node.ask(commands.Fenced(fence.session, fence.segment, fence.number), object)

    @rule(number=numbers, node=st.booleans(), back=st.booleans())
    def disconnect(self, number: int, node: bool, back: bool) -> None:
        peer = self.node(number) if node else self.client(number)
        peer.disconnect()
        if back or number % 4:
            self.world.hello(peer.name, "node" if node else "client", peer.incarnation)

    @rule(number=numbers, node=st.booleans(), how=st.sampled_from(["goodbye", "superseded"]))
    def end(self, number: int, node: bool, how: str) -> None:
        if number % 4:
            return  # Rare, or nothing ever fills up.
        peer = self.node(number) if node else self.client(number)
        if how == "goodbye":
            peer.fine(commands.Goodbye())
        else:
            self.world.hello(peer.name, "node" if node else "client")
            (self.nodes if node else self.clients)[int(peer.name[1])] = self.world.peers[max(self.world.peers)]
        if node:
            self.node(number).mount(512)

    @rule(number=numbers)
    def unmount(self, number: int) -> None:
        if number % 4:
            return
        node = self.node(number)
        segments = self.world.core._context.state.segments.of_session(node.id)
        serving = [segment for segment in segments if not segment.going]
        if serving:
            node.fine(commands.Unmount(serving[0].id))
        else:
            node.mount(512)

    @rule(ms=st.sampled_from([1, 500, 3_000, 9_000, 30_000]))
    def time_passes(self, ms: int) -> None:
        if ms > 3_000 and len(self.puts) % 4:
            ms = 1
        self.world.advance(ms)

    @rule(ms=st.sampled_from([3_000, 12_000]))
    def time_passes_and_all_live(self, ms: int) -> None:
        self.world.idle(ms, *(peer for peer in [*self.nodes, *self.clients] if peer.is_alive()))

    @invariant()
    def no_reply_came_twice(self) -> None:
        if hasattr(self, "world"):
            for peer in self.world.peers.values():
                assert all(len(replies) == 1 for replies in peer.replies.values())

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.settle()
        assert self.world.replayed().durable_state() == self.world.core.durable_state()
        self.everybody_lets_go()

    def everybody_lets_go(self) -> None:
        """Then the space is free or evictable, and the queue is empty."""
        world = self.world
        for number in range(2):
            node = self.node(number)
            if not world.core._context.state.segments.of_session(node.id):
                node.mount(512)
            world.hello(node.name, "node", node.incarnation)
        for number in range(3):
            client = self.client(number)
            for key in KEYS:
                # What is evicted between two slices needs no unpinning.
                with suppress(KeyNotFound):
                    client.pin(key, Pin.NONE)
        state = world.core._context.state
        for _ in range(len(KEYS) * 8):
            world.settle()
            puts = list(state.puts.by_id.values())
            if not puts and not state.puts.quarantined and not world.core._context.waiting.undecided:
                break
            for lease in list(world.core._context.leases.by_id.values()):
                world.peers[lease.session].release(lease.id)
            for put in puts:
                if world.peers[put.session].is_alive():
                    world.peers[put.session].put_revoke(put.put_id)
            for writer, _ in list(state.puts.by_place):
                if world.peers[writer].is_alive():
                    world.peers[writer].fine(commands.Goodbye())
            for number in range(2):
                self.node_answers_fences(number)
        assert world.core._context.waiting.undecided == 0
        assert world.quarantined_bytes() == 0


class SlicedHistories(Histories):
    """The same with the smallest slices: everything may come between everything."""

    slice_objects = 1


BUDGET = settings(
    max_examples=50, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestHistories = Histories.TestCase
TestHistories.settings = BUDGET
TestSlicedHistories = SlicedHistories.TestCase
TestSlicedHistories.settings = BUDGET
