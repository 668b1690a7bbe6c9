"""Faults in the client and the node: the gate that bytes leave through, what a writer and an owner say."""

from __future__ import annotations

from tests.mutations.mutation import Mutation, selections

READER = "pykvpool/client/reader.py"
WRITER = "pykvpool/client/writer.py"
HELD = "pykvpool/client/held.py"
VIEWS = "pykvpool/client/views.py"

_gate = selections("client/test_reader_gate.py")
_writer = selections("client/test_writer_rules.py")
_views = selections("client/test_view_rules.py")

MUTATIONS = (
    Mutation(
        name="skip-the-lease-check-on-the-read-path",
        rule="P1: the lease is checked after the transfer",
        file=READER,
        old="    held.check()\n    if outcome.checksum is None",
        new="    if outcome.checksum is None",
        checks=_gate,
    ),
    Mutation(
        name="a-checksum-never-verified",
        rule="P1: readers verify when their CPU sees the bytes",
        file=READER,
        old="    if outcome.checksum != info.checksum:\n",
        new="    if outcome.checksum == info.checksum + 1:\n",
        checks=_gate,
    ),
    Mutation(
        name="a-lease-counted-from-its-answer",
        rule="design 5: the TTL counts from before the first send",
        file=READER,
        old="        return reply, HeldLease(self._link, reply.lease, reply.lease_ms, asked_at_ms)\n",
        new="        return reply, HeldLease(self._link, reply.lease, reply.lease_ms, self._link.now_ms())\n",
        checks=_gate,
    ),
    Mutation(
        name="a-lease-trusted-to-its-last-moment",
        rule="design 5: the client trusts 95 % of the TTL",
        file=HELD,
        old="TRUST_RATIO = 0.95\n",
        new="TRUST_RATIO = 1.0\n",
        checks=_gate,
    ),
    Mutation(
        name="a-lapsed-lease-renewed-by-its-holder",
        rule="P2: a lapsed lease is never renewed",
        file=HELD,
        old="        self.check()\n        wanted_ms",
        new="        wanted_ms",
        checks=_gate,
    ),
    Mutation(
        name="a-lease-released-before-the-read-has-drained",
        rule="design 5: leases are released only after the drain",
        file=READER,
        old="        outcomes = await router.read(batch, timeout_s)\n",
        new="        held.release()\n        outcomes = await router.read(batch, timeout_s)\n",
        checks=_gate,
    ),
    Mutation(
        name="only-the-first-copy-is-tried",
        rule="design 4.4: every live replica is tried",
        file=READER,
        old="        if self.next_replica >= len(self.replicas):\n",
        new="        if self.next_replica >= 1:\n",
        checks=_gate,
    ),
    Mutation(
        name="a-copy-with-other-bytes-is-a-miss-for-good",
        rule="P8: a bad copy costs a retry on the next one",
        file=READER,
        old="                error = mismatch\n",
        new="                want.job.result = mismatch\n                return True\n",
        checks=_gate,
    ),
    Mutation(
        name="a-view-never-looks-at-its-lease-again",
        rule="P1: leaving a view whose lease lapsed raises StaleView",
        file=VIEWS,
        old="            self._held.check()\n",
        new="",
        checks=_views,
    ),
    Mutation(
        name="a-stale-view-goes-on-showing-bytes",
        rule="P1: a view shows nothing once its lease has lapsed",
        file=VIEWS,
        old="        if self._held is not None and not self._held.trusted:\n",
        new="        if self._held is not None and self._held.lease is None:\n",
        checks=_views,
    ),
    Mutation(
        name="a-view-can-be-written-through",
        rule="P1: views are read-only",
        file=VIEWS,
        old="        self._data = data.toreadonly()\n",
        new="        self._data = data\n",
        checks=_views,
    ),
    Mutation(
        name="a-view-that-is-open-lets-its-lease-run-out",
        rule="design 5: a view keeps its lease renewed",
        file=VIEWS,
        old="            self._held.keep_alive()\n",
        new="            pass\n",
        checks=_views,
    ),
    Mutation(
        name="a-torn-write-is-named-certain",
        rule="P2: torn off, anything may be under way",
        file=WRITER,
        old="            return (1 << len(self.grant.extents)) - 1 if self.started else 0\n",
        new="            return 0\n",
        checks=_writer,
    ),
    Mutation(
        name="an-unsettled-copy-is-named-certain",
        rule="P2: what is not settled is named uncertain",
        file=WRITER,
        old="        return sum(1 << i for i, outcome in enumerate(self.outcomes) if not outcome.settled)\n",
        new="        return 0\n",
        checks=_writer,
    ),
    Mutation(
        name="a-failed-copy-counts-as-landed",
        rule="P1: readable when enough copies landed",
        file=WRITER,
        old="        return sum(1 << i for i, outcome in enumerate(self.outcomes) if outcome.error is None)\n",
        new="        return (1 << len(self.outcomes)) - 1\n",
        checks=_writer,
    ),
    Mutation(
        name="local-buffers-released-before-the-drain",
        rule="design 5: a transfer ends when its completions are drained",
        file=WRITER,
        old="                await drain(work)\n            raise\n",
        new="            raise\n",
        checks=_writer,
    ),
    Mutation(
        name="an-offloaded-copy-outlives-its-cancellation",
        rule="design 5: local buffers are given back only after the drain",
        file="pykvpool/runtime.py",
        old="            await drain(future)\n            raise\n",
        new="            raise\n",
        checks=selections(
            "fabric/test_conformance.py::TestEveryFabric::test_p2_a_cancelled_read_leaves_the_buffer_alone_from_then_on"
        ),
    ),
    Mutation(
        name="a-batch-holds-its-grants-while-it-waits",
        rule="P7: a batch never holds and waits",
        file=WRITER,
        old="        while self._open:\n            group = self._next_group()\n",
        new="        while self._open and not self._waiting:\n            group = self._next_group()\n",
        checks=_writer,
    ),
    Mutation(
        name="tickets-are-left-behind",
        rule="P7: who gives up leaves the queue",
        file=WRITER,
        old="            self._link.tell(PutForget(tuple(self._waiting)), self._life)\n",
        new="",
        checks=_writer,
    ),
    Mutation(
        name="a-late-grant-is-kept-for-nobody",
        rule="P3: nothing leaks when a caller gives up",
        file="pykvpool/client/hooks.py",
        old="                self.link.tell(PutRevoke(grants), life)\n",
        new="                pass\n",
        checks=selections("client/test_late_replies.py"),
    ),
    Mutation(
        name="a-late-lease-is-kept-for-nobody",
        rule="P6: a lease nobody holds is given back",
        file="pykvpool/client/hooks.py",
        old="            self.link.tell(Release((reply.lease,)), life)\n",
        new="            pass\n",
        checks=selections("client/test_late_replies.py"),
    ),
    Mutation(
        name="a-goodbye-though-the-master-was-not-told",
        rule="P2: a goodbye says that nothing is under way",
        file="pykvpool/client/link.py",
        old="goodbye=not self._unsaid[self.life]",
        new="goodbye=True",
        checks=_writer,
    ),
    Mutation(
        name="fewer-copies-than-asked-is-not-said",
        rule="design 4.3: fewer than asked is reported as degraded",
        file=WRITER,
        old="            degraded=len(schemes) < self._options.replicas,\n",
        new="            degraded=False,\n",
        checks=_writer,
    ),
    Mutation(
        name="a-node-answers-a-fence-before-it-is-done",
        rule="P2: the owner's word is true when it is given",
        file="pykvpool/node/node.py",
        old="        await mount.fence(instruction.name, instruction.incarnation, instruction.ban)\n",
        new=(
            "        fencing = mount.fence(instruction.name, instruction.incarnation, instruction.ban)\n"
            "        self._fencing = asyncio.ensure_future(fencing)\n"
        ),
        checks=selections("node/test_node_duties.py"),
    ),
    Mutation(
        name="a-node-forgets-that-the-session-is-over",
        rule="P2: a dead writer is banned",
        file="pykvpool/node/node.py",
        old="        await mount.fence(instruction.name, instruction.incarnation, instruction.ban)\n",
        new="        await mount.fence(instruction.name, instruction.incarnation, False)\n",
        checks=selections("node/test_node_duties.py"),
    ),
    Mutation(
        name="a-remount-leaves-the-old-generation-open",
        rule="P5: remount destroys the old generation",
        file="pykvpool/node/mount.py",
        old="        await asyncio.gather(*(server.withdraw(self.memory.generation) for server in self._servers))\n",
        new="",
        checks=selections("node/test_node_duties.py"),
    ),
    Mutation(
        name="an-owner-hashes-a-byte-too-few",
        rule="P1: the owner's checksum is that of the whole object",
        file="pykvpool/node/mount.py",
        old="extent.offset + extent.length]\n",
        new="extent.offset + extent.length - 1]\n",
        checks=selections("node/test_node_duties.py"),
    ),
)
