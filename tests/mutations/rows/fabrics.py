"""Faults in the data plane: what an owner lets in, what a peer may still touch, what may be tried again."""

from __future__ import annotations

from tests.mutations.mutation import Check, Mutation, selections

EXPORTS = "pykvpool/fabric/exports.py"
TCP_SERVER = "pykvpool/fabric/tcp_server.py"
SHM_SERVER = "pykvpool/fabric/shm_server.py"


def _conformance(test: str) -> tuple[Check, ...]:
    """One test of the conformance suite, on every fabric of this machine."""
    return selections(f"fabric/test_conformance.py::TestEveryFabric::test_{test}")


MUTATIONS = (
    Mutation(
        name="serve-an-old-generation",
        rule="P5: a withdrawn generation is gone",
        file=EXPORTS,
        old="        return self._exports.pop(generation, None)\n",
        new="        return self._exports.get(generation)\n",
        checks=_conformance("p5_a_withdrawn_generation_is_gone_for_transfers_under_way_and_to_come"),
    ),
    Mutation(
        name="a-straggler-of-an-older-put-lands",
        rule="P2: an owner refuses a put older than what it last saw there",
        file=EXPORTS,
        old="        fresh = put_id >= newest\n",
        new="        fresh = True\n",
        checks=selections("fabric/test_parts.py"),
    ),
    Mutation(
        name="a-write-is-not-asked-for-its-put-id",
        rule="P2: every write states its put and is held to it",
        file=EXPORTS,
        old="        if refusal is None and not self.guard.admit(offset, put_id):\n",
        new="        if refusal is None and offset < 0:\n",
        checks=_conformance("p2_a_straggler_of_an_older_put_is_refused_and_the_rest_goes_on"),
    ),
    Mutation(
        name="an-owner-skips-the-bounds",
        rule="P5: bounds are checked per request",
        file=EXPORTS,
        old="        if offset < 0 or length < 0 or offset + length > self.memory.size_bytes:\n",
        new="        if offset < 0 or length < 0:\n",
        checks=_conformance("what_lies_outside_is_refused_alone"),
    ),
    Mutation(
        name="bounds-off-by-one",
        rule="P5: bounds are checked to the byte",
        file=EXPORTS,
        old="        if offset < 0 or length < 0 or offset + length > self.memory.size_bytes:\n",
        new="        if offset < 0 or length < 0 or offset + length > self.memory.size_bytes + 1:\n",
        checks=selections("fabric/test_owner_rules.py"),
    ),
    Mutation(
        name="a-reader-may-write-over-the-data-plane",
        rule="design 5: reader-only sessions do not write",
        file="pykvpool/fabric/checks.py",
        old='        return None if peer.writable else InvalidArgument("a reader may not write")\n',
        new="        return None\n",
        checks=selections("fabric/test_owner_rules.py"),
    ),
    Mutation(
        name="an-owner-believes-a-reader-that-writes",
        rule="design 5: the owner checks for itself who may write",
        file=EXPORTS,
        old='        if not peer.writable:\n            return InvalidArgument("a reader may not write")\n',
        new="",
        checks=selections("fabric/test_owner_rules.py"),
    ),
    Mutation(
        name="a-banned-session-comes-again",
        rule="P2: a fenced and banned session is refused",
        file=EXPORTS,
        old="        return (peer.name, peer.incarnation) in self._banned\n",
        new="        return (peer.name, peer.incarnation) in self._banned and peer.incarnation < 0\n",
        checks=_conformance("p2_a_banned_session_is_refused_and_its_successor_is_not"),
    ),
    Mutation(
        name="a-ban-hits-the-successor",
        rule="P2: a ban concerns one incarnation",
        file=EXPORTS,
        old="        return (peer.name, peer.incarnation) in self._banned\n",
        new="        return any(peer.name == name for name, _ in self._banned)\n",
        checks=_conformance("p2_a_banned_session_is_refused_and_its_successor_is_not"),
    ),
    Mutation(
        name="tcp-a-fence-leaves-connections-open",
        rule="P2: tcp fences by closing connections",
        file=TCP_SERVER,
        old="(session.peer.name, session.peer.incarnation) == (name, incarnation)\n",
        new="(session.peer.name, session.generation) == (name, None)\n",
        checks=_conformance("p2_nothing_lands_after_a_fence_has_returned"),
    ),
    Mutation(
        name="tcp-a-withdrawal-leaves-transfers-running",
        rule="P5: nothing lands in a withdrawn generation",
        file=TCP_SERVER,
        old="        self._end(gone(generation), lambda session: session.generation == generation)\n",
        new="",
        checks=_conformance("p5_a_withdrawn_generation_is_gone_for_transfers_under_way_and_to_come"),
    ),
    Mutation(
        name="tcp-a-broken-write-is-called-settled",
        rule="fabric rule: a write that broke half way is not settled",
        file="pykvpool/fabric/tcp_exchange.py",
        old="                item.outcome = Outcome(error=error, settled=not begun, scheme=self.scheme)\n",
        new="                item.outcome = Outcome(error=error, settled=True, scheme=self.scheme)\n",
        checks=selections("fabric/test_tcp_connections.py"),
    ),
    Mutation(
        name="tcp-a-begun-write-is-sent-again",
        rule="P2: a write that may still land is not sent again",
        file="pykvpool/fabric/tcp_exchange.py",
        old="        return not self.answered and (self.kind is Kind.READ or self.sending.done_bytes == 0)\n",
        new="        return not self.answered\n",
        checks=selections("fabric/test_tcp_connections.py"),
    ),
    Mutation(
        name="inproc-a-fence-does-not-wait-for-copies",
        rule="P2: a fence returns when nothing can land",
        file="pykvpool/fabric/local.py",
        old="        while any(transfer in self._transfers for transfer in ending):\n",
        new="        while False:\n",
        checks=_conformance("p2_nothing_lands_after_a_fence_has_returned"),
    ),
    Mutation(
        name="shm-the-control-word-is-not-looked-at",
        rule="P5: a withdrawn generation is gone at once",
        file="pykvpool/fabric/shm_map.py",
        old="        if self._control is None or CONTROL_WORD.unpack_from(self._control)[0] != self.generation:\n",
        new="        if self._control is None:\n",
        checks=selections("fabric/test_owner_rules.py"),
    ),
    Mutation(
        name="shm-a-fence-returns-on-time-alone",
        rule="P2: a live shm writer is waited for",
        file=SHM_SERVER,
        old="            await writer.released(generation)\n",
        new="            await asyncio.sleep(0)\n",
        checks=selections("fabric/test_shm_connections.py"),
    ),
    Mutation(
        name="shm-a-hung-up-socket-is-evidence",
        rule="P2: only the process's end or word is evidence",
        file=SHM_SERVER,
        old="                shm_peer.hung_up()\n",
        new="                shm_peer.release_all()\n                shm_peer.hung_up()\n",
        checks=selections("fabric/test_shm_connections.py"),
    ),
    Mutation(
        name="shm-a-reader-gets-a-writable-map",
        rule="design 5: reader-only sessions get read-only maps",
        file=SHM_SERVER,
        old="        mode = os.O_RDWR if shm_peer.peer.writable else os.O_RDONLY\n",
        new="        mode = os.O_RDWR\n",
        checks=selections("fabric/test_shm_connections.py"),
    ),
    Mutation(
        name="shm-a-peer-says-unmapped-before-its-copies-end",
        rule="P2: unmapped is said when nothing can land",
        file="pykvpool/fabric/shm_map.py",
        old="        await self.in_flight.end(reason)\n",
        new="",
        checks=_conformance("p2_nothing_lands_after_a_fence_has_returned"),
    ),
    Mutation(
        name="the-handshake-accepts-a-wrong-token",
        rule="design 3: data connections prove the shared token",
        file="pykvpool/fabric/handshake.py",
        old='hmac.compare_digest(body.proof, _proof(self._token, b"client", self._hello, self._nonce))',
        new='len(body.proof) == len(_proof(self._token, b"client", self._hello, self._nonce))',
        checks=selections("fabric/test_handshake.py"),
    ),
    Mutation(
        name="a-proof-covers-no-nonce",
        rule="P12: a recorded proof is worth nothing",
        file="pykvpool/fabric/handshake.py",
        old='b"pykvpool data " + side + server_nonce + hello',
        new='b"pykvpool data " + side + hello',
        checks=selections("fabric/test_handshake.py"),
    ),
    Mutation(
        name="the-router-retries-an-unsettled-write",
        rule="P2: a write is tried again only if its outcome is settled",
        file="pykvpool/fabric/router.py",
        old="    return outcome.settled or isinstance(operation, Read)\n",
        new="    return True\n",
        checks=selections("fabric/test_router.py"),
    ),
    Mutation(
        name="the-router-forgets-that-a-write-is-unsettled",
        rule="P2: what is not settled stays so to the end",
        file="pykvpool/fabric/router.py",
        old="        return Outcome(error=error, settled=outcome.settled, scheme=outcome.scheme)\n",
        new="        return Outcome(error=error, scheme=outcome.scheme)\n",
        checks=selections("fabric/test_router.py"),
    ),
    Mutation(
        name="a-transfer-ends-before-its-pieces",
        rule="fabric rule: drained, also when cancelled",
        file="pykvpool/fabric/tasks.py",
        old="        for task in tasks:\n            await drain(task)\n",
        new="",
        checks=selections("fabric/test_router.py"),
    ),
    Mutation(
        name="a-checksum-misses-the-last-piece",
        rule="P1: a checksum is that of all the bytes",
        file="pykvpool/memory/copying.py",
        old="    for piece in pieces:\n        state.update(piece)\n    return state.intdigest()\n",
        new="    for piece in pieces[:-1]:\n        state.update(piece)\n    return state.intdigest()\n",
        checks=selections("memory/test_copying.py"),
    ),
)
