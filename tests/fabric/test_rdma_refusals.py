"""Every verb refused, on a device that goes on living or has vanished: what was moved is right, what was not is a typed
failure, the next transfer works, memory that a card may touch is not given back, and nothing stays behind."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest

from pykvpool.errors import PoolError
from pykvpool.fabric.base import Outcome
from pykvpool.fabric.rdma import link, server
from pykvpool.fabric.rdma.rails import DESTROY_TRIES
from pykvpool.fabric.verbs import Status
from tests.fabric.bench import jump
from tests.fabric.rdma_stage import MIB, Stage, stage, turns, until

CALLS = (
    "open", "limits", "port", "protection_domain", "completion_queue", "register", "queue_pair",
    "to INIT", "to RTR", "to RTS", "post", "arm", "take_event", "poll", "next_event",
)  # fmt: skip
CLOSES = ("close queue pair", "close region", "close domain", "close completion queue", "close context")
DATA = random.Random(8).randbytes(3 * MIB)


async def works(here: Stage) -> None:
    """A write and a read of the same bytes, in several tries at most."""
    for _ in range(4):
        jump(60)
        async with asyncio.timeout(10):
            outcome = await here.write(MIB, DATA)
        assert outcome.error is None or isinstance(outcome.error, PoolError)
        if outcome.error is not None:
            continue
        assert here.memory.view[MIB : MIB + len(DATA)] == DATA
        async with asyncio.timeout(10):
            read = await here.read(MIB, len(DATA))
        assert isinstance(read, Outcome) or read == DATA
        if read == DATA:
            return
    raise AssertionError(f"it does not recover: {outcome}")


@pytest.mark.parametrize("skip", [0, 1, 3])
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("end", ["near", "far"])
async def test_a_call_that_is_refused_costs_its_transfer_at_most(end: str, call: str, number: int, skip: int) -> None:
    async with stage(queue_pairs=2) as here:
        card = getattr(here, end)[0]
        card.refuse_call(call, number, skip)
        await works(here)
        card.drop()
        await works(here)
        card.refuse_no_call()


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("times", [1, DESTROY_TRIES + 1])
@pytest.mark.parametrize("call", CLOSES)
@pytest.mark.parametrize("end", ["near", "far"])
async def test_what_is_not_let_go_of_at_once_goes_later(
    monkeypatch: pytest.MonkeyPatch, end: str, call: str, times: int, skip: int
) -> None:
    for module in (link, server):
        monkeypatch.setattr(module, "DESTROY_AGAIN_S", 0.001)
    async with stage(queue_pairs=2) as here:
        card = getattr(here, end)[0]
        await here.connected()
        card.refuse_call(call, errno.ETIMEDOUT, skip, times)
        here.near[0].fail_next(Status.RETRY_EXCEEDED)
        await works(here)
        card.drop()
        await works(here)


@pytest.mark.parametrize("end", ["near", "far"])
async def test_a_device_that_has_vanished_is_closed_like_any_other(end: str) -> None:
    """The kernel has destroyed everything on it and says so to whoever closes something: that is no refusal."""
    async with stage(queue_pairs=2) as here:
        link = await here.connected()
        getattr(here, end)[0].drop(vanished=True)
        await until(lambda: link.lanes == 2)
        await works(here)
        await until(lambda: not getattr(here, end)[0].contexts)


async def test_p2_a_queue_pair_that_is_not_destroyed_keeps_the_callers_buffer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link, "DESTROY_AGAIN_S", 0.001)
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        here.hold()
        into = bytearray(MIB)
        reading = asyncio.ensure_future(here.client.read([here.to_read(0, into)], 20))
        await until(lambda: here.under_way)
        card = here.near[0]
        before = card.calls["close queue pair"]
        card.refuse_call("close queue pair", errno.ETIMEDOUT, times=10 * DESTROY_TRIES)
        reading.cancel()
        await until(lambda: card.calls["close queue pair"] >= before + 2 * DESTROY_TRIES)
        assert not reading.done(), "the card may still write to it"
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert card.calls["close queue pair"] > before + 10 * DESTROY_TRIES
        assert caplog.text.count("cannot be destroyed, so memory is not given back") == 1, "said once"
        here.release()
        assert (await here.write(0, b"again")).error is None


async def test_p2_a_fence_is_not_answered_before_the_queue_pair_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "DESTROY_AGAIN_S", 0.001)
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        card = here.far[0]
        card.refuse_call("close queue pair", errno.ETIMEDOUT, times=10 * DESTROY_TRIES)
        fencing = asyncio.ensure_future(here.server.fence("peer", 1, here.segment.generation, ban=False))
        await until(lambda: card.calls["close queue pair"] >= 2 * DESTROY_TRIES)
        await turns()
        assert not fencing.done()
        await fencing
        assert not card.pairs


async def test_closing_does_not_wait_for_a_card_that_keeps_an_idle_queue_pair() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
        card = here.near[0]
        card.refuse_call("close queue pair", errno.ETIMEDOUT, times=1000)
        async with asyncio.timeout(10):
            await here.client.close()
        assert len(card.pairs) == 1, "it goes with the process"
        card.drop()
        for kept in (card.pairs, card.regions, card.contexts):
            kept.clear()
