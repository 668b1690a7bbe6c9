"""An engine's cache and requests, as far as the scheduler's side looks at them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pykvpool.hashing import BlockHasher

TOKENS = 16


@dataclass
class FakeBlock:
    block_id: int
    references: int = 0

    @property
    def is_null(self) -> bool:
        return self.block_id == 0


@dataclass
class FakeRequest:
    """A request of `num_tokens` tokens; those of equal `family` begin alike."""

    request_id: str
    num_tokens: int
    family: int = 0
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    skip_reading_prefix_cache: bool = False
    kv_transfer_params: dict[str, Any] | None = None
    lora_request: Any = None
    block_hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens or self.num_tokens
        tokens = range(self.family * 10_000, self.family * 10_000 + self.num_tokens)
        self.block_hashes = self.block_hashes or list(BlockHasher("sha256", None, TOKENS).hash_tokens(tokens))


class FakeBlocks:
    """`EngineBlocks`: tables are set by the test."""

    def __init__(self, total: int = 1000) -> None:
        self.total = total
        self.blocks = [FakeBlock(number) for number in range(total + 1)]
        self.tables: dict[str, tuple[list[FakeBlock], ...]] = {}
        self.hashed: dict[tuple[bytes, int], FakeBlock] = {}
        #: Numbers in the order in which references were taken back.
        self.freed: list[int] = []
        self.looked_up = 0

    def give(self, request_id: str, *groups: Iterable[int]) -> tuple[list[FakeBlock], ...]:
        self.tables[request_id] = tuple([self.blocks[number] for number in ids] for ids in groups)
        return self.tables[request_id]

    @property
    def referenced(self) -> list[int]:
        return [block.block_id for block in self.blocks if block.references]

    def table(self, request_id: str) -> tuple[list[FakeBlock], ...]:
        self.looked_up += 1
        return self.tables[request_id]

    def cached(self, block_hash: bytes, group: int) -> FakeBlock | None:
        return self.hashed.get((block_hash, group))

    def touch(self, blocks: Sequence[FakeBlock]) -> None:
        for block in blocks:
            block.references += 1

    def free(self, blocks: Iterable[FakeBlock]) -> None:
        for block in blocks:
            assert block.references > 0, "a reference that was not taken is given back"
            block.references -= 1
            self.freed.append(block.block_id)


@dataclass
class FakePlan:
    """A step: who runs, who was preempted."""

    runs: tuple[str, ...] = ()
    preempted_req_ids: tuple[str, ...] = ()

    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        return dict.fromkeys(self.runs, 1)
