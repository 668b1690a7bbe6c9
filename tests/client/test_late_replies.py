"""A reply that comes after its caller has given up: what it granted is given back, or nobody ever would (P3, P6)."""

from __future__ import annotations

from pykvpool.client.hooks import SessionHooks
from pykvpool.model.commands import Exists, GetReplicas, MatchPrefix, PutForget, PutRevoke, PutStart, PutWait, Release
from pykvpool.model.replies import Done, Existing, Flags, Located, Matched, Pending, PutGrant, PutStarted
from tests.client.fakes import SEGMENT, Bench, extent

GRANTED = PutStarted((Existing(1), PutGrant(2, (extent(SEGMENT, 0, 5),)), Pending(3, False), PutGrant(4, ())))


async def given_back(command, reply) -> list:
    """What the client says to the master when `reply` comes too late."""
    bench = Bench({PutRevoke: [Done()], PutForget: [Done()], Release: [Done()]})
    hooks = SessionHooks()
    hooks.link = bench.link
    hooks.orphan_reply(command, reply)
    await bench.end()
    return bench.session.sent


async def test_grants_that_nobody_will_write_are_revoked_and_tickets_forgotten():
    expected = [PutRevoke((2, 4)), PutForget((3,))]
    assert await given_back(PutStart(0, (b"k",) * 4, (5,) * 4), GRANTED) == expected
    assert await given_back(PutWait((3,), 0), GRANTED) == expected
    assert await given_back(PutWait((3,), 0), PutStarted((Existing(1),))) == []


async def test_leases_that_nobody_holds_are_released():
    assert await given_back(GetReplicas(0, (b"k",)), Located((), 7, 1_000)) == [Release((7,))]
    assert await given_back(MatchPrefix((b"k",), (0,), hold=True), Matched(1, (), 7, 1_000)) == [Release((7,))]
    assert await given_back(GetReplicas(0, (b"k",)), Located((), None, 0)) == []
    assert await given_back(MatchPrefix((b"k",), (0,)), Matched(1)) == []


async def test_other_late_replies_need_nothing():
    assert await given_back(Exists(0, (b"k",)), Flags(b"\x01")) == []


def test_a_reply_that_comes_before_there_is_a_client_harms_nobody():
    SessionHooks().orphan_reply(PutWait((3,), 0), GRANTED)
