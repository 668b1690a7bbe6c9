"""Loads: which blocks of a request are to be brought, and which requests wait for theirs.

A load covers everything between what the engine has itself and the end of the hit, in every group, as far as the engine
has given it blocks: what it left out (null blocks, before a sliding window) it does not need. It must be all of that:
vLLM takes every block of the hit for computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pykvpool_connector.vllm.identity import Identity
from pykvpool_connector.vllm.messages import GroupBlocks, LoadOrder
from pykvpool_connector.vllm.scheduler.engine import Block
from pykvpool_connector.vllm.scheduler.requests import Tracked


class Loads:
    """Orders of loads for the next step."""

    def __init__(self, identity: Identity, *, next_job: Callable[[], int]) -> None:
        self._identity = identity
        self._next_job = next_job
        self._queue: list[LoadOrder] = []

    def order(self, tracked: Tracked, table: Sequence[Sequence[Block]], tokens: int) -> None:
        """Load `tokens` tokens beyond what the engine has itself into the blocks it has allocated for them."""
        request = tracked.request
        groups: list[GroupBlocks] = []
        for rule in self._identity.groups:
            first = tracked.local // rule.block_tokens
            last = (tracked.local + tokens) // rule.block_tokens
            hashes = request.block_hashes[first * rule.hash_stride : last * rule.hash_stride]
            wanted = [
                (key, block.block_id)
                for key, block in zip(
                    self._identity.keys(hashes, rule.group), table[rule.group][first:last], strict=False
                )
                if not block.is_null
            ]
            if wanted:
                keys, block_ids = zip(*wanted, strict=True)
                groups.append(GroupBlocks(rule.group, keys, block_ids))
        tracked.loading = self._next_job()
        self._queue.append(LoadOrder(tracked.loading, request.request_id, tracked.adapter or "", tuple(groups)))

    def take(self) -> tuple[LoadOrder, ...]:
        orders = tuple(self._queue)
        self._queue.clear()
        return orders
