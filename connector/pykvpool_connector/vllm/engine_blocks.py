"""vLLM's block tables and block pool, as the scheduler's side sees them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pykvpool_connector.vllm.scheduler.engine import Block


class VllmBlocks:
    """`EngineBlocks` over vLLM's `KVCacheManager`."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._pool = manager.block_pool

    @property
    def total(self) -> int:
        return int(self._pool.num_gpu_blocks) - 1

    def table(self, request_id: str) -> Sequence[Sequence[Block]]:
        blocks: Sequence[Sequence[Block]] = self._manager.get_blocks(request_id).blocks
        return blocks

    def cached(self, block_hash: bytes, group: int) -> Block | None:
        found = self._pool.get_cached_block(block_hash, [group])
        return found[0] if found else None

    def touch(self, blocks: Sequence[Block]) -> None:
        self._pool.touch(blocks)

    def free(self, blocks: Iterable[Block]) -> None:
        self._pool.free_blocks(blocks)
