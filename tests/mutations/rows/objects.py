"""Faults in objects, leases, eviction and the queue: what is readable, what may go, who comes first (P1, P6, P7)."""

from __future__ import annotations

from tests.mutations.mutation import Mutation, selections

EVICTOR = "pykvpool/core/eviction/evictor.py"
PLAN = "pykvpool/core/eviction/plan.py"
WAITING = "pykvpool/core/waiting.py"
WRITING = "pykvpool/core/handlers/writing.py"
LOOKUP = "pykvpool/core/handlers/lookup.py"
LEASES = "pykvpool/core/leases.py"

_eviction = selections("properties/test_eviction_properties.py")
_space = selections("properties/test_space_properties.py")
_policies = selections("properties/test_policy_properties.py")

MUTATIONS = (
    Mutation(
        name="evict-a-leased-block",
        rule="P6: never a leased block",
        file=EVICTOR,
        old='        if catalog.leases[row]:\n            return "leased"\n',
        new="",
        checks=_eviction,
    ),
    Mutation(
        name="evict-a-hard-pinned-block",
        rule="P6: never a hard-pinned block",
        file=EVICTOR,
        old='        if catalog.pin[row] == Pin.HARD:\n            return "hard_pinned"\n',
        new="",
        checks=_eviction,
    ),
    Mutation(
        name="evict-a-parent-before-its-children",
        rule="P6: never creates an orphan",
        file=EVICTOR,
        old='            return "not_tail"\n',
        new='            return ""\n',
        checks=_eviction,
    ),
    Mutation(
        name="soft-pins-count-for-nothing",
        rule="P6: soft-pinned blocks only if nothing else is left",
        file=EVICTOR,
        old="            elif self._catalog.pin[row] == Pin.SOFT:\n",
        new="            elif self._catalog.pin[row] == Pin.SOFT and self._soft_count < 0:\n",
        checks=_eviction,
    ),
    Mutation(
        name="a-released-block-is-never-evicted-again",
        rule="P6: what may go does go",
        file="pykvpool/core/context.py",
        old="                evictor.recheck(row)\n",
        new="                pass\n",
        checks=_eviction,
    ),
    Mutation(
        name="orphans-wait-their-turn",
        rule="design 4.6: orphans go first",
        file=EVICTOR,
        old="        row = self._take_orphan()\n",
        new="        row = None\n",
        checks=_eviction,
    ),
    Mutation(
        name="evict-more-than-the-room-needs",
        rule="P6: as few blocks as the order allows",
        file=PLAN,
        old="            if row in needed or not evictor.is_taken(row):\n",
        new="            if needed or not evictor.is_taken(row):\n",
        checks=_space,
    ),
    Mutation(
        name="a-failed-eviction-changes-something",
        rule="P6: or changes nothing",
        file=PLAN,
        old="            if not (yield from self._take(supposed)) or self._is_off():\n                return set()\n",
        new=(
            "            if not (yield from self._take(supposed)) or self._is_off():\n"
            "                return set(list(self._evictor.taken())[:1])\n"
        ),
        checks=_space,
    ),
    Mutation(
        name="a-touched-block-keeps-its-old-place",
        rule="P6: exactly least recently used",
        file="pykvpool/core/eviction/lazy_heap.py",
        old="            if current > entry:\n",
        new="            if current > entry and not self._entered[row]:\n",
        checks=_policies,
    ),
    Mutation(
        name="what-is-put-back-starts-anew",
        rule="P6: put back in the place that its history gives it",
        file="pykvpool/core/eviction/heap_order.py",
        old="    def put_back(self, row: int) -> None:\n",
        new="    def put_back(self, row: int) -> None:\n        self._order.set(row, self._stamps.at[row])\n",
        checks=_policies,
    ),
    Mutation(
        name="a-read-is-no-use",
        rule="P6: a read makes a block recent",
        file="pykvpool/core/hold.py",
        old="        context.touch(rows)\n",
        new="",
        checks=_eviction,
    ),
    Mutation(
        name="end-a-put-by-the-wrong-client",
        rule="P1: only the starter ends its put",
        file=WRITING,
        old="        if put.session != session:\n",
        new="        if put.session != session and session < 0:\n",
        checks=_space,
    ),
    Mutation(
        name="a-stale-put-id-is-accepted",
        rule="design 4.3: a stale put_id is refused",
        file=WRITING,
        old='    raise StalePut(f"put {put_id} is not open any more: revoked',
        new='    return None\n    raise StalePut(f"put {put_id} is not open any more: revoked',
        checks=_space,
    ),
    Mutation(
        name="copies-that-failed-are-named-to-readers",
        rule="P1: only what landed is readable",
        file=WRITING,
        old="if landed >> i & 1 and not uncertain >> i & 1 and extent in alive\n",
        new="if not uncertain >> i & 1 and extent in alive\n",
        checks=_space,
    ),
    Mutation(
        name="another-size-under-a-key-is-success",
        rule="P1: content addressed keys never change their bytes",
        file=WRITING,
        old="    if catalog.size[row] != wish.size_bytes:\n",
        new="    if catalog.size[row] < 0:\n",
        checks=selections("core/test_core_p1_key_binds_bytes.py"),
    ),
    Mutation(
        name="in-progress-answered-as-success",
        rule="P1: another live writer is waited for",
        file=WAITING,
        old="            return Pending(ticket.id, True)\n",
        new="            return Existing(writer.put_id) if writer is not None else Pending(ticket.id, True)\n",
        checks=selections("core/test_core_p7_full_is_not_failure.py"),
    ),
    Mutation(
        name="a-writer-that-gave-up-is-success-for-its-followers",
        rule="design 4.1: the first that waited takes over",
        file="pykvpool/core/context.py",
        old="        self.waiting.holder_gone(put.key)\n",
        new="        self.waiting.committed(put)\n",
        checks=selections("core/test_core_p7_full_is_not_failure.py"),
    ),
    Mutation(
        name="waiters-are-overtaken",
        rule="P7: writers wait in order",
        file=WAITING,
        old="        if not self._placer.is_busy() and self._head() is None:\n            put",
        new="        if not self._placer.is_busy():\n            put",
        checks=selections("core/test_core_p7_full_is_not_failure.py"),
    ),
    Mutation(
        name="renew-a-lapsed-lease",
        rule="P2: renewing a lapsed lease fails",
        file=LEASES,
        old="        if lease is None or lease.expires_at <= now:\n",
        new="        if lease is None:\n",
        checks=_space,
    ),
    Mutation(
        name="a-lease-covers-the-first-of-its-batch",
        rule="P2: one lease covers the whole batch",
        file=LEASES,
        old="            counts[row] = count + 1\n",
        new="            counts[row] = count + (row == rows[0])\n",
        checks=_eviction,
    ),
    Mutation(
        name="the-leases-of-a-dead-reader-end-at-once",
        rule="P2: a reader that vanished may still read",
        file="pykvpool/core/liveness.py",
        old="    if drained:\n        work = context.new_slice()\n",
        new="    if True:\n        work = context.new_slice()\n",
        checks=_space,
    ),
    Mutation(
        name="a-prefix-is-counted-in-the-last-scope-alone",
        rule="P11: the hit is what every rank and group can restore",
        file=LOOKUP,
        old="        count = hits\n",
        new="        count = hits if scope == counted[-1] else count\n",
        checks=selections("core/test_core_lookups.py"),
    ),
    Mutation(
        name="the-answer-of-an-owner-sums-any-object",
        rule="P1: a hash counts for the copy that was hashed",
        file="pykvpool/core/hash_requests.py",
        old="        if self._extent(segment, put_id) is not None:\n",
        new="        if self._context.state.catalog.by_put.get(put_id) != NONE:\n",
        checks=selections("core/test_core_checksums.py"),
    ),
)
