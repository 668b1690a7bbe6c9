"""How the blocks of a job are moved chunk by chunk: what an error in the middle of it means for the rest."""

from __future__ import annotations

import asyncio

import pytest

from pykvpool.client import GetResult, PutResult
from pykvpool.errors import KeyNotFound, NotReady, PoolFull
from pykvpool.host import jobs, lookups
from pykvpool.host.jobs import AddressMover, SaveTally
from pykvpool.host.lookups import Holds, ask
from pykvpool.host.port import Found, LoadJob, Lookup, Question, SaveJob
from pykvpool.model.objects import Vouch
from pykvpool.runtime import drain
from tests.host.stage import OTHER_RANK, SCOPE, Memory, chain


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Client:
    """Puts all but `full` and `busy`, gets all but `missing`; `there`: keys of each scope."""

    def __init__(self, full=(), busy=(), missing=(), there=None) -> None:
        self._refused = dict.fromkeys(full, PoolFull("no room")) | dict.fromkeys(busy, NotReady("being written"))
        self._missing, self._there = set(missing), there or {}
        self.put: list[bytes] = []
        self.got: list[bytes] = []
        self.writing = 0
        #: Gets wait for it.
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def put_batch(self, items, **options):
        self.put += [item.key for item in items]
        return [self._refused.get(item.key) or PutResult(size_bytes=len(item.key)) for item in items]

    async def get_into_batch(self, keys, places, **options):
        self.got += keys
        if not self._missing & set(keys):
            self.writing += 1
            try:
                await self.go_on.wait()
            finally:
                await drain(asyncio.ensure_future(turns(5)))  # a transfer that is given up drains first
                self.writing -= 1
        size = sum(len(piece) for piece in places[0])
        return [
            KeyNotFound("gone") if key in self._missing else GetResult(size, Vouch.CHECKSUM, "tcp", "n") for key in keys
        ]

    async def match_prefix(self, keys, scopes, presence=(), **options):
        flags = [bytes(key in self._there[scope] for key in keys) for scope in scopes]
        count = min((each + b"\0").index(0) for each in flags)
        return type("Match", (), {"count": count, "presence": flags if presence else (), "hold": None})


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(jobs, "CHUNK_BLOCKS", 4)


async def test_what_comes_behind_a_dropped_block_is_not_put():
    """It could not be found without it."""
    client, memory = Client(full=[chain(12)[5]]), Memory()
    others = memory.group(chain(3, "b"), range(3), OTHER_RANK)
    job = SaveJob(1, (memory.group(chain(12), range(12)), others), 1_000)
    tally = SaveTally(job)
    await AddressMover().save(client, job, tally, 1.0)
    assert client.put == [*chain(12)[:8], *chain(3, "b")], "the chunk with the hole, none behind it, the other group"
    done = tally.done("late", 0.0)
    assert (done.stored, done.dropped, done.reasons) == (10, 5, {"PoolFull": 5})


async def test_what_comes_behind_a_block_that_somebody_else_is_writing_is_put():
    """Two engines compute one prefix at a time: what each has behind it is its own."""
    client, memory = Client(busy=chain(12)[:6]), Memory()
    job = SaveJob(1, (memory.group(chain(12), range(12)),), 1_000)
    tally = SaveTally(job)
    await AddressMover().save(client, job, tally, 1.0)
    assert client.put == list(chain(12))
    done = tally.done("late", 0.0)
    assert (done.stored, done.dropped, done.reasons) == (6, 6, {"NotReady": 6})


async def test_a_load_that_failed_has_drained_when_it_says_so():
    client, memory = Client(missing=[chain(8)[6]]), Memory()
    client.go_on.clear()
    with pytest.raises(KeyNotFound):
        await AddressMover().load(client, LoadJob(1, (memory.group(chain(8), range(8)),), 1_000), 1.0)
    assert client.got == list(chain(8)), "both chunks were under way"
    assert client.writing == 0


async def test_a_load_that_is_given_up_again_and_again_drains_all_the_same():
    client, memory = Client(), Memory()
    client.go_on.clear()
    loading = asyncio.ensure_future(
        AddressMover().load(client, LoadJob(1, (memory.group(chain(8), range(8)),), 1_000), 1.0)
    )
    while client.writing < 2:
        await asyncio.sleep(0)
    for _ in range(3):
        loading.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([loading])
    assert loading.cancelled()
    assert client.writing == 0


@pytest.mark.parametrize("at_a_time", [1, 2])
async def test_a_hit_is_what_every_scope_has_however_many_are_asked_at_a_time(monkeypatch, at_a_time):
    monkeypatch.setattr(lookups, "MAX_SCOPES", at_a_time)
    monkeypatch.setattr(lookups, "MAX_BATCH_KEYS", 3)
    keys = chain(8)
    client = Client(there={SCOPE: keys[:5], OTHER_RANK: (*keys[:4], *keys[6:])})
    questions = (
        Question((SCOPE, OTHER_RANK), keys),
        Question((OTHER_RANK, SCOPE), keys),
        Question((SCOPE, OTHER_RANK), keys, presence=True),
    )
    found = await ask(client, Lookup(1, questions, 1_000), Holds(), 1.0)
    assert found == (Found(4), Found(4), Found(4, bytes([1, 1, 1, 1, 0, 0, 0, 0])))
