"""Every verb refused once, on a device that goes on living: what was moved is right, what was not is a typed failure,
the next transfer works, and nothing stays behind."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest

from pykvpool.errors import PoolError
from pykvpool.fabric.base import Outcome
from pykvpool.fabric.rdma.client import RdmaClient
from tests.fabric.bench import jump
from tests.fabric.rdma_stage import MIB, Stage, stage

VERBS = (
    "open", "limits", "port", "protection_domain", "completion_queue", "register", "queue_pair",
    "to INIT", "to RTR", "to RTS", "post", "arm", "take_event", "poll", "next_event",
    "close queue pair", "close region", "close domain",
)  # fmt: skip
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
    raise AssertionError(f"it does not recover: {outcome} {read if outcome.error is None else ''}")


@pytest.mark.parametrize("skip", [0, 1, 3])
@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOMEM, errno.EIO])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("end", ["near", "far"])
async def test_a_verb_that_is_refused_costs_its_transfer_at_most(end: str, verb: str, number: int, skip: int) -> None:
    async with stage(near=("near0", "near1"), far=("far0", "far1"), queue_pairs=2) as here:
        card = (here.near if end == "near" else here.far)[0]
        card.refuse_call(verb, number, skip)
        await works(here)
        card.drop()
        await works(here)
        card.refuse_no_call()
