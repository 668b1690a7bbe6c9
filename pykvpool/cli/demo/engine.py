"""A pretended inference engine: everything that a real one does with a pool, except to compute.

Per turn it hashes the prompt, takes what its own memory holds, asks the pool for more, loads that straight into its
memory and checks every byte, "computes" the rest (writes the bytes that only the right block has) and saves what the
pool did not have. It knows nothing of processes and passes; the pool is whatever offers the five calls of `EnginePool`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pykvpool.cli.demo.blocks import block_content, is_block
from pykvpool.cli.demo.engine_cache import EngineCache
from pykvpool.cli.demo.messages import Setup, TurnResult
from pykvpool.cli.demo.prompts import HASH_ALGORITHM, HASH_SEED, PromptHasher
from pykvpool.cli.demo.turns import Turn
from pykvpool.client import GetResult, PrefixMatch, PutItem, PutResult
from pykvpool.errors import PoolError
from pykvpool.hashing import BlockHasher, GroupLayout, KeyBuilder, KVLayout, Rank
from pykvpool.model.keys import Scope

#: Blocks moved in one call. Enough to keep every fabric busy, few enough that checking one batch is short.
BATCH_BLOCKS = 512


class EnginePool(Protocol):
    """What an engine asks of a pool; `pykvpool.client.Client` offers it."""

    async def match_prefix(
        self, hashes: Sequence[bytes], scopes: Sequence[Scope] | None = None, *, hold: bool = False
    ) -> PrefixMatch: ...

    async def get_into_batch(
        self, keys: Sequence[bytes], buffers: Sequence[memoryview], *, scope: Scope | None = None
    ) -> list[GetResult | PoolError]: ...

    async def put_batch(
        self, items: Sequence[PutItem], *, scope: Scope | None = None
    ) -> list[PutResult | PoolError]: ...


def demo_scope(block_tokens: int, block_bytes: int) -> Scope:
    """The scope of the demo's blocks: a model of one layer whose block has `block_bytes`."""
    group = GroupLayout(
        kind="full",
        layers=("layer.0",),
        block_tokens=block_tokens,
        kv_heads=1,
        key_size=block_bytes // block_tokens // 2,
        value_size=block_bytes // block_tokens // 2,
        page_bytes=block_bytes,
    )
    layout = KVLayout(
        model="pretended",
        model_dtype="uint8",
        kv_dtype="uint8",
        memory_order="NHD",
        groups=(group,),
        hash_algorithm=HASH_ALGORITHM,
        first_hash=BlockHasher(HASH_ALGORITHM, HASH_SEED, block_tokens).none_hash,
        hash_block_tokens=block_tokens,
    )
    return KeyBuilder(layout, namespace="demo").scope(Rank(), 0)


class Engine:
    """One engine with its own memory of `setup.slots` blocks."""

    def __init__(self, setup: Setup, memory: memoryview, clock: Callable[[], float] = time.perf_counter) -> None:
        self._setup = setup
        self._clock = clock
        self._memory = memory
        self._hasher = PromptHasher(setup.seed, setup.block_tokens)
        self._cache = EngineCache(setup.slots)
        self._scope = demo_scope(setup.block_tokens, setup.block_bytes)
        #: None: this engine works alone.
        self.pool: EnginePool | None = None

    def forget(self) -> None:
        """Empty the engine's own memory."""
        self._cache.clear()

    async def run(self, number: int, turn: Turn) -> TurnResult:
        """Run one turn. Errors of single blocks are counted and recomputed; others are raised (`PoolError`)."""
        blocks = self._hasher.blocks(turn)
        prompt, hashes = blocks.prompt_blocks, blocks.hashes
        result = TurnResult(number, turn.input_tokens)
        own = self._cache.match(hashes[:prompt])
        result.own_tokens = own * self._setup.block_tokens
        slots = self._cache.take(hashes)
        known = own
        if self.pool is not None and own < prompt:
            known += await self._load(self.pool, hashes[:prompt], slots, own, result)
        self._compute(hashes, slots, known)
        if self.pool is not None:
            await self._save(self.pool, hashes, slots, known, result)
        return result

    def _slot(self, slot: int) -> memoryview:
        size = self._setup.block_bytes
        return self._memory[slot * size : (slot + 1) * size]

    async def _load(
        self, pool: EnginePool, prompt: list[bytes], slots: list[int], start: int, result: TurnResult
    ) -> int:
        """Load what the pool has of blocks [start, ...) and check it; returns how many from `start` on are good."""
        started = self._clock()
        match = await pool.match_prefix(prompt[start:], [self._scope], hold=True)
        result.lookup_s = self._clock() - started
        if match.hold is None:
            return 0
        good = 0
        async with match.hold:
            while good < match.count:
                at = start + good
                batch = range(at, min(at + BATCH_BLOCKS, start + match.count))
                loaded = await self._load_batch(pool, prompt, slots, batch, result)
                good += loaded
                if loaded < len(batch):
                    break
        result.pool_tokens = good * self._setup.block_tokens
        return good

    async def _load_batch(
        self, pool: EnginePool, prompt: list[bytes], slots: list[int], batch: range, result: TurnResult
    ) -> int:
        """Load one batch and compare every byte; returns how many of the first blocks are good."""
        buffers = [self._slot(slots[index]) for index in batch]
        started = self._clock()
        answers = await pool.get_into_batch([prompt[index] for index in batch], buffers, scope=self._scope)
        result.load_s += self._clock() - started
        bad = len(batch)
        for position, (answer, buffer) in enumerate(zip(answers, buffers, strict=True)):
            if isinstance(answer, PoolError):
                _count(result.not_loaded, answer.kind, 1)
                bad = min(bad, position)
                continue
            result.loaded_blocks += 1
            result.loaded_bytes += answer.size_bytes
            _count(result.fabric_bytes, answer.scheme, answer.size_bytes)
            result.verified_bytes += len(buffer)
            if not is_block(buffer, prompt[batch[position]]):
                result.wrong_blocks += 1
                bad = min(bad, position)
        return bad

    def _compute(self, hashes: list[bytes], slots: list[int], start: int) -> None:
        """Fill the slots of blocks [start, ...) as if their KV had been computed."""
        for index in range(start, len(hashes)):
            self._slot(slots[index])[:] = block_content(hashes[index], self._setup.block_bytes)

    async def _save(
        self, pool: EnginePool, hashes: list[bytes], slots: list[int], start: int, result: TurnResult
    ) -> None:
        """Save blocks [start, ...); the pool says itself which it already has."""
        for at in range(start, len(hashes), BATCH_BLOCKS):
            batch = range(at, min(at + BATCH_BLOCKS, len(hashes)))
            items = [
                PutItem(hashes[index], self._slot(slots[index]), parent=hashes[index - 1] if index else None)
                for index in batch
            ]
            started = self._clock()
            answers = await pool.put_batch(items, scope=self._scope)
            result.save_s += self._clock() - started
            for answer in answers:
                if isinstance(answer, PoolError):
                    _count(result.not_saved, answer.kind, 1)
                elif not answer.existed:
                    result.saved_blocks += 1
                    result.saved_bytes += answer.size_bytes
                    _count(result.fabric_bytes, answer.scheme, answer.size_bytes)


def _count(counts: dict[str, int], name: str, number: int) -> None:
    counts[name] = counts.get(name, 0) + number
