"""The second part of the conformance suite: transfers that end early. Drained, settled, fenced, withdrawn.

Each scenario holds a big transfer in its middle, does something to it, lets it go, and looks at both memories.
"""

from __future__ import annotations

import asyncio

import pytest

from pykvpool.errors import Closed, DeadlineExceeded, PoolError, SegmentGone
from pykvpool.fabric.base import Peer
from tests.fabric.bench import BIG_BYTES, TIMEOUT_S, Backend, Bench, jump
from tests.fabric.conformance_moves import errors_of

WRITER = Peer("writer", 77)
MARK = b"\xab"


async def turns(count: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


class Endings:
    """Each test is given a `bench`, and the `backend` where it asks."""

    async def test_p2_a_cancelled_read_leaves_the_buffer_alone_from_then_on(self, bench: Bench) -> None:
        client, segment, hold = await bench.held_client(WRITER)
        bench.memory.view[:BIG_BYTES] = MARK * BIG_BYTES
        target = bytearray(BIG_BYTES)
        reading = asyncio.ensure_future(client.read([bench.read(0, target, segment=segment)], TIMEOUT_S))
        await hold.reached()
        reading.cancel()
        await turns()
        if not bench.backend.on_the_wire:
            assert not reading.done(), "a thread may still be copying"
            hold.release()
        with pytest.raises(asyncio.CancelledError):
            await reading
        if not bench.backend.on_the_wire:
            assert not any(target), "a copy that was called off before it began did not begin"
        target[:] = bytes(BIG_BYTES)  # the buffer is ours again
        await hold.quiet()
        await turns()
        assert not any(target)

    async def test_p2_a_cancelled_write_reads_the_buffer_no_more(self, bench: Bench) -> None:
        client, segment, hold = await bench.held_client(WRITER)
        source = bytearray(MARK * BIG_BYTES)
        writing = asyncio.ensure_future(client.write([bench.write(0, source, segment=segment)], TIMEOUT_S))
        await hold.reached()
        writing.cancel()
        await turns()
        if not bench.backend.on_the_wire:
            assert not writing.done(), "a thread may still be copying"
            hold.release()
        with pytest.raises(asyncio.CancelledError):
            await writing
        source[:] = b"\xcd" * BIG_BYTES
        await hold.quiet()
        await turns()
        assert b"\xcd" not in bytes(bench.memory.view[:BIG_BYTES])

    async def test_a_deadline_ends_a_transfer_with_an_outcome_and_drained(self, bench: Bench) -> None:
        client, segment, hold = await bench.held_client(WRITER)
        target = bytearray(BIG_BYTES)
        bench.memory.view[:BIG_BYTES] = MARK * BIG_BYTES
        reading = asyncio.ensure_future(client.read([bench.read(0, target, segment=segment)], TIMEOUT_S))
        await hold.reached()
        jump(TIMEOUT_S)
        await turns()
        if not bench.backend.on_the_wire:
            assert not reading.done(), "a thread may still be copying"
            hold.release()
        (outcome,) = await reading
        assert isinstance(outcome.error, DeadlineExceeded)
        assert outcome.settled
        target[:] = bytes(BIG_BYTES)
        await hold.quiet()
        await turns()
        assert not any(target)

    async def test_a_write_that_broke_off_half_way_is_not_settled_and_one_that_had_not_begun_is(
        self, bench: Bench, backend: Backend
    ) -> None:
        client, segment, hold = await bench.held_client(WRITER)
        batch = [bench.write(0, MARK * BIG_BYTES, segment=segment), bench.write(BIG_BYTES, b"later", segment=segment)]
        if backend.on_the_wire:
            # Enough behind the first that the kernel cannot have taken the last before the relay stopped.
            batch.insert(1, bench.write(0, bytearray(BIG_BYTES), put_id=2, segment=segment))
            batch.insert(2, bench.write(0, bytearray(BIG_BYTES), put_id=3, segment=segment))
            batch.insert(3, bench.write(0, bytearray(BIG_BYTES), put_id=4, segment=segment))
        writing = asyncio.ensure_future(client.write(batch, TIMEOUT_S))
        await hold.reached()
        jump(TIMEOUT_S)
        await turns()
        if not backend.on_the_wire:
            hold.release()
        outcomes = await writing
        assert all(isinstance(outcome.error, DeadlineExceeded) for outcome in outcomes)
        if backend.lanes > 1:
            assert [outcome.settled for outcome in outcomes].count(False) >= backend.on_the_wire
            return
        # In order: the first was under way, the last had not begun.
        assert outcomes[-1].settled
        if not backend.on_the_wire or backend.owner_is_asked:
            assert outcomes[0].settled == (not backend.on_the_wire)
        elif outcomes[0].settled:
            # Said on the owner's word, which came in time: nothing lands any more.
            landed = bytes(bench.memory.view)
            await hold.quiet()
            await turns()
            assert bytes(bench.memory.view) == landed

    async def test_p2_nothing_lands_after_a_fence_has_returned(self, bench: Bench) -> None:
        client, segment, hold = await bench.held_client(WRITER)
        writing = asyncio.ensure_future(client.write([bench.write(0, MARK * BIG_BYTES, segment=segment)], TIMEOUT_S))
        await hold.reached()
        fencing = asyncio.ensure_future(
            bench.server.fence(WRITER.name, WRITER.incarnation, bench.segment.generation, ban=False)
        )
        await turns()
        returned_early = fencing.done()
        hold.release()
        # On the wire a connection can be cut; a thread that copies cannot, so its end has to be awaited.
        assert bench.backend.on_the_wire or not returned_early
        await fencing
        landed = bytes(bench.memory.view)
        (outcome,) = await writing
        assert outcome.error is not None
        await hold.quiet()
        await turns()
        assert bytes(bench.memory.view) == landed

    async def test_a_fence_without_transfers_returns_and_the_peer_may_come_again(self, bench: Bench) -> None:
        client = bench.client(WRITER)
        await bench.server.fence(WRITER.name, WRITER.incarnation, bench.segment.generation, ban=False)
        assert errors_of(await client.write([bench.write(0, b"abc")], TIMEOUT_S)) == [None]
        await bench.server.fence(WRITER.name, WRITER.incarnation, bench.segment.generation, ban=False)
        assert errors_of(await client.write([bench.write(0, b"def")], TIMEOUT_S)) == [None]
        assert bytes(bench.memory.view[:3]) == b"def"

    async def test_a_fence_concerns_one_session_only(self, bench: Bench) -> None:
        client, segment, hold = await bench.held_client(WRITER)
        writing = asyncio.ensure_future(client.write([bench.write(0, MARK * BIG_BYTES, segment=segment)], TIMEOUT_S))
        await hold.reached()
        for name, incarnation in (("another", WRITER.incarnation), (WRITER.name, WRITER.incarnation + 1)):
            await bench.server.fence(name, incarnation, bench.segment.generation, ban=True)
        hold.release()
        assert errors_of(await writing) == [None]

    async def test_p2_a_banned_session_is_refused_and_its_successor_is_not(self, bench: Bench) -> None:
        client = bench.client(WRITER)
        assert errors_of(await client.write([bench.write(0, b"abc")], TIMEOUT_S)) == [None]
        await bench.server.fence(WRITER.name, WRITER.incarnation, bench.segment.generation, ban=True)
        for banned in (client, bench.client(WRITER)):
            (outcome,) = await banned.write([bench.write(0, b"xyz")], TIMEOUT_S)
            assert outcome.error is not None
            assert outcome.error.kind in ("Refused", "Unavailable")
        assert bytes(bench.memory.view[:3]) == b"abc"
        successor = bench.client(Peer(WRITER.name, WRITER.incarnation + 1))
        assert errors_of(await successor.write([bench.write(0, b"new")], TIMEOUT_S)) == [None]

    async def test_p5_a_withdrawn_generation_is_gone_for_transfers_under_way_and_to_come(self, bench: Bench) -> None:
        client, segment, hold = await bench.held_client(WRITER)
        target = bytearray(BIG_BYTES)
        reading = asyncio.ensure_future(client.read([bench.read(0, target, segment=segment)], TIMEOUT_S))
        await hold.reached()
        withdrawing = asyncio.ensure_future(bench.server.withdraw(bench.segment.generation))
        await turns()
        hold.release()
        await withdrawing
        (outcome,) = await reading
        assert outcome.error is not None
        fresh = bench.client()
        for other in (client, fresh):
            (later,) = await other.read([bench.read(0, bytearray(8))], TIMEOUT_S)
            assert isinstance(later.error, SegmentGone)
            (write,) = await other.write([bench.write(0, b"late")], TIMEOUT_S)
            assert isinstance(write.error, SegmentGone)
            assert write.settled
        assert not any(bench.memory.view[:4])

    async def test_p5_a_remount_is_reached_by_its_own_descriptor_only(self, bench: Bench) -> None:
        client = bench.client()
        assert errors_of(await client.write([bench.write(0, b"old")], TIMEOUT_S)) == [None]
        await bench.server.withdraw(bench.segment.generation)
        memory, segment = bench.mount()
        batch = [bench.write(0, b"bad"), bench.write(0, b"new", segment=segment)]
        assert errors_of(await client.write(batch, TIMEOUT_S)) == [SegmentGone, None]
        assert bytes(memory.view[:3]) == b"new"
        assert bytes(bench.memory.view[:3]) == b"old"

    async def test_withdrawing_twice_or_what_never_was_is_harmless(self, bench: Bench) -> None:
        await bench.server.withdraw(bench.segment.generation)
        await bench.server.withdraw(bench.segment.generation)

    async def test_an_owner_that_ends_mid_transfer_is_an_outcome_and_the_call_returns(self, bench: Bench) -> None:
        client, segment, hold = await bench.held_client(WRITER)
        target = bytearray(BIG_BYTES)
        reading = asyncio.ensure_future(client.read([bench.read(0, target, segment=segment)], TIMEOUT_S))
        await hold.reached()
        closing = asyncio.ensure_future(bench.server.close())
        await turns()
        hold.release()
        await closing
        (outcome,) = await reading
        assert isinstance(outcome.error, PoolError)
        target[:] = bytes(BIG_BYTES)
        await hold.quiet()
        assert not any(target)
        (later,) = await client.read([bench.read(0, bytearray(1))], TIMEOUT_S)
        assert later.error is not None
        await bench.server.close()

    async def test_closing_a_client_ends_its_transfers_with_closed(self, bench: Bench) -> None:
        client, segment, hold = await bench.held_client(WRITER)
        target = bytearray(BIG_BYTES)
        reading = asyncio.ensure_future(client.read([bench.read(0, target, segment=segment)], TIMEOUT_S))
        await hold.reached()
        closing = asyncio.ensure_future(client.close())
        await turns()
        hold.release()
        await closing
        target[:] = bytes(BIG_BYTES)
        (outcome,) = await reading
        assert isinstance(outcome.error, Closed)
        await hold.quiet()
        assert not any(target)

    async def test_a_client_may_be_closed_twice_and_refuses_use_afterwards(self, bench: Bench) -> None:
        client = bench.client()
        assert errors_of(await client.write([bench.write(0, b"abc")], TIMEOUT_S)) == [None]
        await client.close()
        await client.close()
        assert errors_of(await client.read([bench.read(0, bytearray(1))], TIMEOUT_S)) == [Closed]
        assert errors_of(await client.write([bench.write(0, b"x")], TIMEOUT_S)) == [Closed]
        assert bytes(bench.memory.view[:3]) == b"abc"
