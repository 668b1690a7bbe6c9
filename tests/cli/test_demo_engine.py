"""A pretended engine against a pretended pool: what it counts is what happened."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pykvpool.cli.demo.engine import Engine, demo_scope
from pykvpool.cli.demo.messages import Setup, TurnResult
from pykvpool.cli.demo.turns import StreamPart, StreamPrompt, TracePrompt, Turn
from pykvpool.client import GetResult, PrefixMatch, PutItem, PutResult
from pykvpool.errors import KeyNotFound, PoolError, PoolFull
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Vouch

TOKENS, BYTES = 4, 64


class Hold:
    """A lease that counts itself."""

    held = 0

    async def __aenter__(self) -> Hold:
        Hold.held += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        Hold.held -= 1


class FakePool:
    """A dict with the pool's five verbs."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.parents: dict[bytes, bytes | None] = {}
        self.lost: set[bytes] = set()
        self.full = False
        self.asked: list[int] = []

    async def match_prefix(
        self, hashes: Sequence[bytes], scopes: Sequence[Scope] | None = None, *, hold: bool = False
    ) -> PrefixMatch:
        self.asked.append(len(hashes))
        missing = (position for position, block_hash in enumerate(hashes) if block_hash not in self.objects)
        return PrefixMatch(next(missing, len(hashes)), hold=Hold() if hold else None)  # type: ignore[arg-type]

    async def get_into_batch(
        self, keys: Sequence[bytes], buffers: Sequence[memoryview], *, scope: Scope | None = None
    ) -> list[GetResult | PoolError]:
        assert Hold.held == 1, "blocks are loaded under a lease"
        results: list[GetResult | PoolError] = []
        for key, buffer in zip(keys, buffers, strict=True):
            if key in self.lost:
                results.append(KeyNotFound("gone"))
                continue
            buffer[:] = self.objects[key]
            results.append(GetResult(len(buffer), Vouch.CHECKSUM, "fake", "node"))
        return results

    async def put_batch(self, items: Sequence[PutItem], *, scope: Scope | None = None) -> list[PutResult | PoolError]:
        results: list[PutResult | PoolError] = []
        for item in items:
            assert isinstance(item.key, bytes)
            if self.full:
                results.append(PoolFull("full"))
                continue
            existed = item.key in self.objects
            self.objects[item.key] = bytes(item.data)  # type: ignore[call-overload]
            self.parents[item.key] = item.parent  # type: ignore[assignment]
            results.append(PutResult(BYTES, existed=existed, replicas=1, scheme="fake"))
        return results


def engine(pool: FakePool | None, slots: int = 64) -> Engine:
    setup = Setup("engine", 0, TOKENS, BYTES, slots, (), "", ())
    made = Engine(setup, memoryview(bytearray(slots * BYTES)))
    made.pool = pool
    return made


def turn(tokens: int, stream: str = "a", output: int = 1) -> Turn:
    return Turn(
        "session", "", 0.0, StreamPrompt((StreamPart("common", 8), StreamPart(stream, tokens - 8))), tokens, output
    )


async def test_without_a_pool_an_engine_hits_only_what_it_computed_itself() -> None:
    alone = engine(None)
    assert await alone.run(0, turn(41)) == TurnResult(0, 41)
    again = await alone.run(1, turn(51))
    assert again == TurnResult(1, 51, own_tokens=40)
    alone.forget()
    assert await alone.run(2, turn(51)) == TurnResult(2, 51)


async def test_what_one_engine_saved_another_loads_and_every_byte_is_compared() -> None:
    pool = FakePool()
    saved = await engine(pool).run(0, turn(41, output=10))
    assert (saved.saved_blocks, saved.saved_bytes, saved.pool_tokens) == (12, 12 * BYTES, 0)
    loaded = await engine(pool).run(1, turn(55))
    assert (loaded.own_tokens, loaded.pool_tokens) == (0, 48)
    assert (loaded.loaded_blocks, loaded.loaded_bytes, loaded.verified_bytes) == (12, 12 * BYTES, 12 * BYTES)
    assert (loaded.wrong_blocks, loaded.not_loaded, loaded.saved_blocks) == (0, {}, 2)
    assert loaded.fabric_bytes == {"fake": 14 * BYTES}
    assert Hold.held == 0


async def test_an_engine_asks_only_for_what_its_own_memory_lacks() -> None:
    pool = FakePool()
    first, second = engine(pool), engine(pool)
    await first.run(0, turn(40))
    await second.run(1, turn(80))
    pool.asked.clear()
    result = await first.run(2, turn(100))
    assert pool.asked == [15]
    assert (result.own_tokens, result.pool_tokens) == (40, 40)


async def test_blocks_are_saved_as_a_chain() -> None:
    pool = FakePool()
    await engine(pool).run(0, turn(40))
    hashes = list(pool.objects)
    assert list(pool.parents.values()) == [None, *hashes[:-1]]


async def test_other_sessions_share_only_what_they_have_in_common() -> None:
    pool = FakePool()
    await engine(pool).run(0, turn(40))
    assert (await engine(pool).run(1, turn(40, stream="b"))).pool_tokens == 8


async def test_wrong_bytes_are_seen_counted_and_computed_anew() -> None:
    pool = FakePool()
    await engine(pool).run(0, turn(40))
    right = dict(pool.objects)
    third = list(pool.objects)[2]
    pool.objects[third] = pool.objects[list(pool.objects)[3]]
    reader = engine(pool)
    result = await reader.run(1, turn(40))
    assert (result.wrong_blocks, result.pool_tokens, result.loaded_blocks) == (1, 8, 10)
    # The reader computed the third block and all after it, and saved what it computed.
    assert pool.objects == right


async def test_a_block_that_cannot_be_loaded_is_computed() -> None:
    pool = FakePool()
    await engine(pool).run(0, turn(40))
    pool.lost = {list(pool.objects)[5]}
    result = await engine(pool).run(1, turn(40))
    assert (result.pool_tokens, result.not_loaded, result.wrong_blocks) == (20, {"KeyNotFound": 1}, 0)


async def test_a_full_pool_costs_nothing_but_the_save() -> None:
    pool = FakePool()
    pool.full = True
    result = await engine(pool).run(0, turn(40))
    assert (result.saved_blocks, result.not_saved) == (0, {"PoolFull": 10})


async def test_recorded_prompts_share_blocks_exactly_where_ids_are_equal() -> None:
    pool = FakePool()

    def recorded(scope: str, *ids: int) -> Turn:
        return Turn("session", "", 0.0, TracePrompt(scope, ids), len(ids) * TOKENS + 1, 9)

    await engine(pool).run(0, recorded("s/m", 1, 2, 3))
    assert (await engine(pool).run(1, recorded("s/m", 1, 2, 7))).pool_tokens == 2 * TOKENS
    assert (await engine(pool).run(2, recorded("s/other model", 1, 2, 3))).pool_tokens == 0


def test_the_scope_changes_with_the_size_of_a_block() -> None:
    assert demo_scope(16, 16_384) == demo_scope(16, 16_384)
    assert demo_scope(16, 16_384) != demo_scope(16, 32_768)


@pytest.fixture(autouse=True)
def no_lease_is_left() -> object:
    Hold.held = 0
    yield
    assert Hold.held == 0
