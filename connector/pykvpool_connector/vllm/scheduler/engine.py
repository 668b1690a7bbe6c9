"""What the scheduler's side sees of vLLM: a few attributes of its objects, as protocols.

Nothing is mirrored. Where blocks lie, how far a request is computed and which hashes it has are read from vLLM's own
objects at the moment they are needed: a copy kept beside them is what goes wrong at the next preemption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol


class Block(Protocol):
    """vLLM's `KVCacheBlock`."""

    @property
    def block_id(self) -> int: ...

    @property
    def is_null(self) -> bool:
        """The placeholder with number 0: tokens whose KV is not kept."""
        ...


class EngineRequest(Protocol):
    """vLLM's `Request`."""

    @property
    def request_id(self) -> str: ...

    @property
    def num_tokens(self) -> int:
        """Of the prompt and of all output so far."""
        ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_computed_tokens(self) -> int:
        """Counts the tokens of steps that are still in flight, too; 0 after a preemption."""
        ...

    @property
    def num_in_flight_tokens(self) -> int:
        """Of steps whose output the scheduler has not seen yet."""
        ...

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """One for each full block of `hash_block_tokens` tokens, chained."""
        ...

    @property
    def skip_reading_prefix_cache(self) -> bool: ...

    @property
    def kv_transfer_params(self) -> Mapping[str, Any] | None: ...

    @property
    def lora_request(self) -> Any: ...


class StepPlan(Protocol):
    """vLLM's `SchedulerOutput`."""

    @property
    def num_scheduled_tokens(self) -> Mapping[str, int]: ...

    @property
    def preempted_req_ids(self) -> Iterable[str] | None: ...


class EngineBlocks(Protocol):
    """The engine's own cache: its block tables and its pool of blocks."""

    @property
    def total(self) -> int:
        """Blocks there are, without the null block."""
        ...

    def table(self, request_id: str) -> Sequence[Sequence[Block]]:
        """The blocks of a request in each cache group, null blocks included. Not a copy."""
        ...

    def cached(self, block_hash: bytes, group: int) -> Block | None:
        """The block that the engine's prefix cache has under a hash, referenced or free."""
        ...

    def touch(self, blocks: Sequence[Block]) -> None:
        """Reference blocks once more, so that they are not given out again."""
        ...

    def free(self, blocks: Iterable[Block]) -> None:
        """Take one reference back; of those that come free, the first is given out first."""
        ...
