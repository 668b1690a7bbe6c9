"""Faults in where bytes lie and when they may be used again: allocator, quarantine, generations, placement."""

from __future__ import annotations

from tests.mutations.mutation import Mutation, selections

ALLOCATOR = "pykvpool/core/allocator.py"
STATE = "pykvpool/core/state.py"
WRITING = "pykvpool/core/handlers/writing.py"

_space = selections("properties/test_space_properties.py")

MUTATIONS = (
    Mutation(
        name="off-by-one-in-coalescing",
        rule="P3: what was given back becomes one run again",
        file=ALLOCATOR,
        old="        if end == after:\n",
        new="        if end + self.alignment_bytes == after:\n",
        checks=selections("properties/test_allocator_properties.py"),
    ),
    Mutation(
        name="the-longest-run-is-taken-in-place-of-the-best-fit",
        rule="allocator: shortest run that fits, a choice that any replay repeats",
        file=ALLOCATOR,
        old="        fit = self._lengths[i]\n",
        new="        fit = self._lengths[-1]\n",
        checks=selections("properties/test_allocator_properties.py"),
    ),
    Mutation(
        name="a-double-free-is-taken",
        rule="P2: a free that cannot be true breaks an invariant at once",
        file=ALLOCATOR,
        old="invariant(before_end <= offset and (after < 0 or end <= after), ",
        new="invariant(after < 0 or end <= after, ",
        checks=selections("properties/test_allocator_properties.py"),
    ),
    Mutation(
        name="the-overlay-forgets-its-neighbour-on-the-right",
        rule="P6: a plan knows which runs its evictions join",
        file=ALLOCATOR,
        old="            end = end if base_right is None else base_right\n",
        new="",
        checks=selections("properties/test_allocator_properties.py"),
    ),
    Mutation(
        name="reuse-a-quarantined-extent",
        rule="P2: quarantine ends on evidence",
        file=STATE,
        old="            if extent in quarantined:\n",
        new="            if extent in quarantined and put.put_id < 0:\n",
        checks=_space,
    ),
    Mutation(
        name="quarantine-ended-by-a-timer",
        rule="P2: quarantine ends on evidence, never on time",
        file="pykvpool/core/master.py",
        old="            stray = () if put.put_id in context.waiting.untold else context.live_extents(put)\n",
        new="            stray = ()\n",
        checks=_space,
    ),
    Mutation(
        name="the-puts-of-a-dead-writer-are-free-at-once",
        rule="P2: a dead writer's extents wait for its fence",
        file="pykvpool/core/liveness.py",
        old="            nothing_lands = drained or put_id in context.waiting.untold\n",
        new="            nothing_lands = True\n",
        checks=_space,
    ),
    Mutation(
        name="a-failed-copy-on-which-something-may-land-is-free-at-once",
        rule="P2: what put_end names uncertain goes to quarantine",
        file=WRITING,
        old="    context.commit_put(put, checksum, good, stray)\n",
        new="    context.commit_put(put, checksum, good, ())\n",
        checks=_space,
    ),
    Mutation(
        name="a-revoke-forgets-what-is-uncertain",
        rule="P2: what put_revoke names uncertain goes to quarantine",
        file=WRITING,
        old='            context.close_put(put, stray, "revoked")\n',
        new='            context.close_put(put, (), "revoked")\n',
        checks=_space,
    ),
    Mutation(
        name="a-fence-frees-what-came-after-it-was-sent",
        rule="P2: an answer covers what was quarantined when the fence was sent",
        file="pykvpool/core/fences.py",
        old='self._free(place, standing.sendings.popleft()[1], "fenced", work)',
        new=(
            "self._free(place, tuple(self._context.state.puts.by_place.get(place, {})), "
            '"fenced", work)\n            standing.sendings.popleft()'
        ),
        checks=selections("core/test_core_p2_no_reuse.py"),
    ),
    Mutation(
        name="another-sessions-word-is-evidence",
        rule="P2: only the writer itself can say that it has drained",
        file="pykvpool/core/fences.py",
        old="        if record.session != session:\n",
        new="        if record.session != session and session < 0:\n",
        checks=selections("core/test_core_p2_no_reuse.py"),
    ),
    Mutation(
        name="a-removed-object-is-free-under-its-readers",
        rule="P2: extents come free when leases end",
        file="pykvpool/core/context.py",
        old="        lingering = catalog.leases[row] > 0\n",
        new="        lingering = False\n",
        checks=_space,
    ),
    Mutation(
        name="a-lingering-object-never-comes-free",
        rule="P3: nothing leaks",
        file="pykvpool/core/context.py",
        old="            if state[row] == LINGERING:\n",
        new="            if state[row] == LINGERING and catalog.leases[row]:\n",
        checks=_space,
    ),
    Mutation(
        name="a-going-segment-is-named-to-readers",
        rule="P5: nothing is read through an earlier mount",
        file="pykvpool/core/handlers/lookup.py",
        old="            break\n        # A segment went between two slices: no reply names it any more.\n",
        new="            break\n        break\n",
        checks=selections("core/test_core_p5_generations.py"),
    ),
    Mutation(
        name="copies-on-one-node",
        rule="P8: replicas lie on distinct nodes",
        file="pykvpool/core/placement.py",
        old="            chosen.setdefault(segment.node, segment)\n",
        new="            chosen.setdefault(str(segment.id), segment)\n",
        checks=_space,
    ),
    Mutation(
        name="too-few-nodes-is-silently-fewer-copies",
        rule="P7: nothing dropped silently",
        file="pykvpool/core/placement.py",
        old="        if nodes < wish.min_granted:\n",
        new="        if not nodes:\n",
        checks=selections("core/test_core_p7_full_is_not_failure.py"),
    ),
    Mutation(
        name="a-loss-takes-the-whole-object",
        rule="P8: losing a node loses the replicas it held and nothing else",
        file="pykvpool/core/loss.py",
        old="    if catalog.state[row] == RESIDENT and not state.has_copy(row):\n",
        new="    if catalog.state[row] == RESIDENT:\n",
        checks=_space,
    ),
)
