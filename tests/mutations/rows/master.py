"""Faults in the master as a state machine, its wire and its shell: one stream of facts, every request once."""

from __future__ import annotations

from tests.mutations.mutation import Mutation, selections

MASTER = "pykvpool/core/master.py"

_replay = selections("properties/test_replay_properties.py")

MUTATIONS = (
    Mutation(
        name="drop-one-fact",
        rule="design 6: facts alone rebuild the state",
        file="pykvpool/core/context.py",
        old="        self.effects.facts.append(fact)\n",
        new="        if not isinstance(fact, ExtentsFreed):\n            self.effects.facts.append(fact)\n",
        checks=_replay,
    ),
    Mutation(
        name="durable-state-changed-beside-the-facts",
        rule="design 6: evolve is the only thing that changes durable state",
        file="pykvpool/core/handlers/writing.py",
        old="    context.touch([row])\n    if wish.pin > catalog.pin[row]:\n",
        new="    context.touch([row])\n    catalog.owner[row] = wish.session\n    if wish.pin > catalog.pin[row]:\n",
        checks=_replay,
    ),
    Mutation(
        name="an-evolve-that-reads-the-clock",
        rule="design 6: facts carry no clock readings, the core has none",
        file="pykvpool/core/sessions.py",
        old="        self.reasons[key] = reason\n",
        new='        import time\n\n        self.reasons[key] = f"{reason} at {time.monotonic_ns()}"\n',
        checks=_replay,
    ),
    Mutation(
        name="an-order-that-depends-on-the-hash-seed",
        rule="design 6: the same events give the same effects",
        file="pykvpool/core/liveness.py",
        old="    for put_id in list(puts.by_session.get(session, ())):\n",
        new="    for put_id in sorted(puts.by_session.get(session, ()), key=lambda each: hash(str(each))):\n",
        checks=_replay,
    ),
    Mutation(
        name="a-repeated-request-is-carried-out-twice",
        rule="design 3: a repeat gets the first reply again",
        file=MASTER,
        old="        if seen is Seen.NEW:\n",
        new="        if seen is not Seen.PENDING:\n",
        checks=_replay,
    ),
    Mutation(
        name="a-late-duplicate-is-new-again",
        rule="design 3: what was taken once is never new again",
        file="pykvpool/core/requests.py",
        old="        return Seen.NEW if ahead > 0 or request_id in self.skipped else Seen.ACKNOWLEDGED\n",
        new="        return Seen.NEW\n",
        checks=_replay,
    ),
    Mutation(
        name="a-superseded-session-is-still-obeyed",
        rule="design 3: the queued commands of an old session are refused",
        file="pykvpool/core/liveness.py",
        old='        end_session(context, session, "superseded")\n',
        new="        context.state.sessions.by_name.clear()\n",
        checks=selections("core/test_core_sessions.py"),
    ),
    Mutation(
        name="a-reader-may-write",
        rule="design 5: reader-only sessions do not write",
        file="pykvpool/core/handlers/__init__.py",
        old="        if session.role not in self.roles:\n",
        new="        if session.role not in (*self.roles, 'reader'):\n",
        checks=selections("core/test_core_p12_bad_input.py"),
    ),
    Mutation(
        name="a-batch-of-any-size-is-taken",
        rule="P12: an oversized batch is refused",
        file="pykvpool/core/handlers/checks.py",
        old="    if len(batch) > limit:\n",
        new="    if len(batch) > 1_000 * limit:\n",
        checks=selections("core/test_core_p12_bad_input.py"),
    ),
    Mutation(
        name="replies-leave-before-their-facts",
        rule="P4: what is acknowledged is where it must be",
        file="pykvpool/master/stepper.py",
        old="        if effects.facts:\n",
        new="        self._deliver(effects)\n        effects.replies.clear()\n        if effects.facts:\n",
        checks=selections("master/test_master_server.py"),
    ),
    Mutation(
        name="a-frame-cut-in-its-header-is-lost",
        rule="P12: frames are the same however the network cut them",
        file="pykvpool/protocol/frames.py",
        old="        if start:\n            del buffer[:start]\n",
        new="        if start or available < HEADER.size:\n            del buffer[: start or available]\n",
        checks=selections("properties/test_wire_properties.py"),
    ),
    Mutation(
        name="a-frame-of-any-length-is-kept",
        rule="P12: a length over the limit is refused by its header",
        file="pykvpool/protocol/frames.py",
        old="            if size > self.limit_bytes:\n",
        new="            if size > self.limit_bytes << 8:\n",
        checks=selections("protocol/test_frames.py"),
    ),
    Mutation(
        name="an-unknown-field-is-taken",
        rule="P12: an unknown field is refused",
        file="pykvpool/model/base.py",
        old="array_like=True, gc=False, forbid_unknown_fields=True",
        new="array_like=True, gc=False, forbid_unknown_fields=False",
        checks=selections("protocol/test_codec.py"),
    ),
    Mutation(
        name="a-control-peer-with-another-token-is-welcome",
        rule="design 3: the handshake proves the shared token",
        file="pykvpool/protocol/handshake.py",
        old="                if not hmac.compare_digest(proof, self._proof(CLIENT_LABEL)):\n",
        new="                if len(proof) != len(self._proof(CLIENT_LABEL)):\n",
        checks=selections("protocol/test_control_handshake.py"),
    ),
    Mutation(
        name="a-block-hash-forgets-its-adapter",
        rule="P11: whatever shapes the bytes is in the key",
        file="pykvpool/hashing/extras.py",
        old="        if self.lora is not None:\n",
        new="        if self.lora is not None and start == 0:\n",
        checks=selections("hashing/test_vllm_hashes.py"),
    ),
    Mutation(
        name="a-block-hash-forgets-its-parent",
        rule="P11: a hash depends on every token before",
        file="pykvpool/hashing/blocks.py",
        old="            parent = hash_block(parent, tuple(buffered[at : at + size]), extra)\n",
        new="            parent = hash_block(self._hasher.none_hash, tuple(buffered[at : at + size]), extra)\n",
        checks=selections("properties/test_hashing_properties.py"),
    ),
    Mutation(
        name="two-tokens-are-written-alike",
        rule="P11: different prompts never share a hash",
        file="pykvpool/hashing/cbor.py",
        old='        return b"\\x19" + value.to_bytes(2, "big")\n',
        new='        return b"\\x19" + (value & 0xFFFE).to_bytes(2, "big")\n',
        checks=selections("properties/test_hashing_properties.py"),
    ),
)
