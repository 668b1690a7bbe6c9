"""Turns the scheduler's orders into jobs of the pool's port, for one rank.

A rank moves its own part of every block: its scope, its runs. Where several ranks hold the same bytes each saves its
stripe of the blocks, so that they are stored once; every rank loads all, for each needs them in its own memory.
"""

from __future__ import annotations

from collections.abc import Callable

from pykvpool.errors import InvalidArgument
from pykvpool.hashing import Rank
from pykvpool.host.port import BlockGroup, DeviceOrder, LoadJob, SaveJob
from pykvpool_connector.vllm.identity import Identity
from pykvpool_connector.vllm.messages import GroupBlocks, LoadOrder, SaveOrder
from pykvpool_connector.vllm.worker.tensors import CacheTensors


class RankJobs:
    """Makes jobs. Raises `InvalidArgument` for blocks that are none of this cache, vLLM's null block among them.

    `device_order`: for a cache in GPU memory, records what the engine's stream has to reach before a job may begin.
    """

    def __init__(
        self,
        identity: Identity,
        rank: Rank,
        tensors: CacheTensors,
        device_order: Callable[[], DeviceOrder] | None = None,
    ) -> None:
        self._identity = identity
        self._rank = rank
        self._tensors = tensors
        self._stripe = identity.stripe(rank)
        self._device_order = device_order

    def load(self, order: LoadOrder, timeout_ms: int) -> LoadJob | None:
        """None: there is nothing to load."""
        device = self._device_order() if self._device_order else None
        groups = tuple(self._blocks(order.adapter, blocks, device) for blocks in order.groups if blocks.keys)
        return LoadJob(order.job_id, groups, timeout_ms) if groups else None

    def save(self, order: SaveOrder, timeout_ms: int) -> SaveJob | None:
        """None: no block of the order is for this rank to save."""
        device = self._device_order() if self._device_order else None
        groups = tuple(
            self._blocks(order.adapter, blocks, device) for each in order.groups if (blocks := self._striped(each)).keys
        )
        return SaveJob(order.job_id, groups, timeout_ms) if groups else None

    def _striped(self, blocks: GroupBlocks) -> GroupBlocks:
        if self._stripe.count == 1:
            return blocks
        mine = [at for at, key in enumerate(blocks.keys) if self._stripe.takes(key)]
        return GroupBlocks(
            blocks.group,
            tuple(blocks.keys[at] for at in mine),
            tuple(blocks.block_ids[at] for at in mine),
            tuple(blocks.parents[at] for at in mine) if blocks.parents else (),
        )

    def _blocks(self, adapter: str, blocks: GroupBlocks, device: DeviceOrder | None) -> BlockGroup:
        if len(blocks.keys) != len(blocks.block_ids) or not self._tensors.holds(blocks.block_ids):
            raise InvalidArgument(
                f"an order for group {blocks.group} names blocks that this cache does not have", group=blocks.group
            )
        scope = self._identity.scope_of(adapter, blocks.group, self._rank)
        runs = self._tensors.runs[blocks.group]
        return BlockGroup(scope, blocks.keys, blocks.block_ids, runs, blocks.parents, device)
