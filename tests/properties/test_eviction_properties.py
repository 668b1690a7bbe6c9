"""Eviction through the master's commands, against a list of blocks: who goes is known in advance, exactly.

All blocks have one size and the segment holds a handful, so that every put into the full pool takes one victim, and
the model can name it: of the blocks that may go, the one that a sorted list has first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pykvpool.model import commands
from pykvpool.model.ids import LeaseId
from pykvpool.model.objects import ObjectInfo, Pin
from pykvpool.model.replies import Matched, PutGrant
from tests.properties.budgets import budget
from tests.properties.core_world import evicted_since, kind_of, segments_of, unchecked_world

SIZE = 64
SLOTS = 4
#: Three chains of three.
CHAINS = ((b"a0", b"a1", b"a2"), (b"b0", b"b1", b"b2"), (b"c0", b"c1", b"c2"))
KEYS = tuple(key for chain in CHAINS for key in chain)
#: A pool is filled with these, parents before their children.
FIRST_FILLS = (b"a0", b"b0", b"c0", b"b1")
PARENTS = {key: (chain[position - 1] if position else None) for chain in CHAINS for position, key in enumerate(chain)}
LEASE_MS = 10_000

keys = st.sampled_from(KEYS)
some_keys = st.lists(keys, min_size=1, max_size=3, unique=True)


@dataclass
class Block:
    """A readable object, as the model has it."""

    key: bytes
    pin: Pin
    born: int
    used: int


@dataclass
class Lease:
    id: LeaseId
    expires_at: int
    #: The objects it covers, removed ones included.
    blocks: list[Block] = field(default_factory=list)


class EvictionAgainstList(RuleBasedStateMachine):
    """The part that both machines below share: blocks come, are used, and the right one goes."""

    policies = ("lru", "fifo")

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.policy = data.draw(st.sampled_from(self.policies))
        self.world = unchecked_world(policy=self.policy, lease_ms=LEASE_MS)
        self.world.node("n", SIZE * SLOTS)
        self.client = self.world.client()
        self.blocks: dict[bytes, Block] = {}
        self.leases: list[Lease] = []
        #: Counts what happens, as a clock for the model.
        self.moment = 0
        # Full, or nearly, from the beginning: what is found is found in a full pool.
        for key in data.draw(st.permutations(FIRST_FILLS))[: data.draw(st.integers(SLOTS - 1, SLOTS))]:
            self.put(key)

    # -- the model ---------------------------------------------------------------------------------------------------

    def is_leased(self, block: Block) -> bool:
        return any(block is each for lease in self.leases for each in lease.blocks)

    def has_children(self, block: Block) -> bool:
        return any(PARENTS[each.key] == block.key for each in self.blocks.values())

    def may_go(self, block: Block) -> bool:
        return not (self.is_leased(block) or block.pin == Pin.HARD or self.has_children(block))

    def place(self, block: Block) -> tuple[bool, int]:
        """Soft-pinned ones after all others; then the policy's order."""
        return (block.pin == Pin.SOFT, block.used if self.policy == "lru" else block.born)

    def victims(self) -> list[bytes]:
        """Who may be the next to go: one, or several of the same moment."""
        candidates = [block for block in self.blocks.values() if self.may_go(block)]
        if not candidates:
            return []
        first = min(map(self.place, candidates))
        if self.policy == "fifo" and first[0]:
            # Blocks enter the second queue in the order in which their pins were noticed.
            return [block.key for block in candidates]
        return [block.key for block in candidates if self.place(block) == first]

    def taken_slots(self) -> int:
        """Of readable blocks, and of those that are gone and still read."""
        gone = {id(b) for lease in self.leases for b in lease.blocks if self.blocks.get(b.key) is not b}
        return len(self.blocks) + len(gone)

    def use(self, found: Iterable[bytes]) -> None:
        self.moment += 1
        for key in found:
            if key in self.blocks:
                self.blocks[key].used = self.moment

    # -- what is done ------------------------------------------------------------------------------------------------

    def put(self, key: bytes, pin: Pin = Pin.NONE) -> None:
        before, is_full = len(self.world.facts), self.taken_slots() == SLOTS
        victims = self.victims()
        (entry,) = self.client.put_start(key, size=SIZE, parents=(PARENTS[key],), wait_ms=0, pin=pin)
        evicted = evicted_since(self.world, before)
        if key in self.blocks:
            assert kind_of(entry) == "Existing"
            assert evicted == []
            self.use([key])
            self.blocks[key].pin = max(pin, self.blocks[key].pin)
        elif is_full and not victims:
            assert kind_of(entry) == "PoolFull"
            assert evicted == [], "what makes no room stays"
        else:
            assert isinstance(entry, PutGrant)
            assert len(evicted) == is_full, "as many as are needed, and no more"
            assert not is_full or evicted[0] in victims
            for gone in evicted:
                del self.blocks[gone]
            self.client.put_end(entry.put_id)
            self.moment += 1
            self.blocks[key] = Block(key, pin, self.moment, self.moment)

    @rule(chosen=some_keys)
    def touch(self, chosen: list[bytes]) -> None:
        self.client.ask(commands.Touch(self.world.scope, tuple(chosen)), object)
        self.use(chosen)

    @rule(chain=st.sampled_from(CHAINS))
    def match_a_prefix(self, chain: tuple[bytes, ...]) -> None:
        found = [*(key in self.blocks for key in chain), False].index(False)
        matched = self.client.ask(commands.MatchPrefix(chain, (self.world.scope,)), Matched)
        assert matched.count == found
        self.use(chain[:found])

    @invariant()
    def exactly_the_blocks_of_the_model_are_readable(self) -> None:
        if hasattr(self, "world"):
            assert self.client.exists(*KEYS) == [key in self.blocks for key in KEYS]
            (segment,) = segments_of(self.client).values()
            assert segment.free_bytes == (SLOTS - self.taken_slots()) * SIZE


class GuardedBlocks(EvictionAgainstList):
    """Leases and pins guard blocks. Nothing is removed from under its children, so there are no orphans by removal."""

    @rule(key=keys, pin=st.sampled_from([Pin.NONE, Pin.NONE, Pin.NONE, Pin.SOFT, Pin.HARD]))
    def put_a_block(self, key: bytes, pin: Pin) -> None:
        self.put(key, pin)

    @rule(chosen=some_keys)
    def put_blocks(self, chosen: list[bytes]) -> None:
        for key in chosen:
            self.put(key)

    @rule(chosen=some_keys)
    def read(self, chosen: list[bytes]) -> None:
        located = self.client.locate(*chosen)
        for key, info in zip(chosen, located.objects, strict=True):
            assert isinstance(info, ObjectInfo) == (key in self.blocks)
        self.use(chosen)
        if located.lease is not None:
            blocks = [self.blocks[key] for key in chosen if key in self.blocks]
            self.leases.append(Lease(located.lease, self.world.now + LEASE_MS, blocks))

    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 100))
    def release(self, number: int) -> None:
        self.client.release(self.leases.pop(number % len(self.leases)).id)

    @rule(ms=st.sampled_from([1, LEASE_MS // 2, LEASE_MS]))
    def time_passes(self, ms: int) -> None:
        self.world.advance(ms)
        self.leases = [lease for lease in self.leases if lease.expires_at > self.world.now]

    @rule(key=keys, pin=st.sampled_from(list(Pin)))
    def set_pin(self, key: bytes, pin: Pin) -> None:
        if key in self.blocks:
            self.client.pin(key, pin)
            self.blocks[key].pin = pin

    @rule(key=keys)
    def remove_a_tail(self, key: bytes) -> None:
        if key in self.blocks and not self.has_children(self.blocks[key]):
            self.client.remove(key, force=True)
            del self.blocks[key]


class OrphanedBlocks(EvictionAgainstList):
    """Nothing is guarded; parents are removed from above their children, and what they leave goes first."""

    def __init__(self) -> None:
        super().__init__()
        #: Keys that were removed while they had children, until they are put again or the last child is gone.
        self.removed_parents: set[bytes] = set()

    def is_orphan(self, block: Block) -> bool:
        """Below a parent that was removed."""
        parent = PARENTS[block.key]
        while parent in self.blocks:
            parent = PARENTS[parent]
        return parent in self.removed_parents

    def is_cut_off(self, block: Block) -> bool:
        """Below a parent that is not there, for whatever reason."""
        parent = PARENTS[block.key]
        while parent in self.blocks:
            parent = PARENTS[parent]
        return parent is not None

    def victims(self) -> list[bytes]:
        tails = [block for block in self.blocks.values() if self.may_go(block)]
        orphans = [block.key for block in tails if self.is_orphan(block)]
        # Whoever was put below nothing is no orphan by removal, and may go before its turn or in it.
        return orphans or [*super().victims(), *(block.key for block in tails if self.is_cut_off(block))]

    def forget_parents(self) -> None:
        living = {PARENTS[key] for key in self.blocks}
        self.removed_parents = {key for key in self.removed_parents if key not in self.blocks and key in living}

    @rule(key=keys)
    def put_a_block(self, key: bytes) -> None:
        if PARENTS[key] is None or PARENTS[key] in self.blocks:
            self.put(key)
            self.forget_parents()

    @rule(chain=st.sampled_from(CHAINS))
    def put_a_chain(self, chain: tuple[bytes, ...]) -> None:
        for key in chain:
            self.put_a_block(key)

    @precondition(lambda self: self.blocks)
    @rule(key=keys)
    def remove(self, key: bytes) -> None:
        if key in self.blocks:
            has_children = self.has_children(self.blocks[key])
            self.client.remove(key)
            del self.blocks[key]
            if has_children:
                self.removed_parents.add(key)
            self.forget_parents()


TestGuardedBlocks = GuardedBlocks.TestCase
TestGuardedBlocks.settings = budget(250)
TestOrphanedBlocks = OrphanedBlocks.TestCase
TestOrphanedBlocks.settings = budget(200)
