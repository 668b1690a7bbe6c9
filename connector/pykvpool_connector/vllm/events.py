"""vLLM's cache events for blocks that come into the pool and leave it."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_events import MEDIUM_CPU, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, maybe_convert_block_hash, to_event_extra_keys
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window

from pykvpool_connector.vllm.cache_groups import GroupRule
from pykvpool_connector.vllm.scheduler.engine import EngineRequest

#: The pool's memory is not the engine's; listeners tell by it whose blocks these are.
LOCALITY = "REMOTE"
OWNERSHIP = "pykvpool"


class VllmEvents:
    """`EventMaker` for the engine's own event stream.

    Args:
        kv_cache_config: vLLM's, for what events say of a group.
    """

    def __init__(self, kv_cache_config: Any) -> None:
        self._specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]

    def stored(self, request: EngineRequest, rule: GroupRule, first: int, last: int) -> object:
        source: Any = request
        ends = [at * rule.hash_stride - 1 for at in range(first, last + 1)]
        hashes = [maybe_convert_block_hash(source.block_hashes[end]) for end in ends[1:]]
        start, end = first * rule.block_tokens, last * rule.block_tokens
        extra_keys = [
            generate_block_hash_extra_keys(source, at, at + rule.block_tokens, 0)[0]
            for at in range(start, end, rule.block_tokens)
        ]
        lora = source.lora_request
        spec = self._specs[rule.group]
        return BlockStored(
            block_hashes=hashes,
            parent_block_hash=maybe_convert_block_hash(source.block_hashes[ends[0]]) if first else None,
            token_ids=list(source.all_token_ids[start:end]),
            block_size=rule.block_tokens,
            lora_id=lora.adapter_id if lora else None,
            medium=MEDIUM_CPU,
            lora_name=lora.name if lora else None,
            extra_keys=to_event_extra_keys(extra_keys),
            group_idx=rule.group,
            kv_cache_spec_kind=get_kv_cache_spec_kind(spec).value,
            kv_cache_spec_sliding_window=get_kv_cache_spec_sliding_window(spec),
            locality=LOCALITY,
            ownership=OWNERSHIP,
            session_id=source.session_id,
        )

    def removed(self, rule: GroupRule, key: bytes) -> object:
        block_hash: Any = key
        return BlockRemoved(
            block_hashes=[maybe_convert_block_hash(block_hash)],
            medium=MEDIUM_CPU,
            group_idx=rule.group,
            locality=LOCALITY,
            ownership=OWNERSHIP,
        )
