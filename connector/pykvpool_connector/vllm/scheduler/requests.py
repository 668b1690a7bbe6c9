"""What is remembered of a request between vLLM's hooks. Everything else is read from vLLM's own objects."""

from __future__ import annotations

from dataclasses import dataclass, field

from pykvpool_connector.vllm.scheduler.engine import EngineRequest
from pykvpool_connector.vllm.scheduler.lookups import Ask


@dataclass(slots=True)
class Tracked:
    """One request from `on_new_request` to its end."""

    request: EngineRequest
    #: Digest of the adapter's content; None until it is known.
    adapter: str | None = None
    #: Neither looked up nor saved: its adapter's content cannot be known.
    bypass: bool = False
    #: When waiting for the adapter's digest ends, in milliseconds; 0: not waiting.
    adapter_deadline: int = 0
    #: The lookup of the present wait. None: not asked, or used up.
    ask: Ask | None = None
    #: A load failed: no further hit is offered.
    load_failed: bool = False
    #: Tokens that the engine had itself when it last asked.
    local: int = 0
    #: Number of the load that was ordered and not reported by all ranks; 0: none.
    loading: int = 0
    #: It was in a step since its blocks were last allocated: what it has computed is in its blocks. Not so while
    #: some connector still loads into them.
    ran: bool = False
    #: Blocks of before a reset: not saved until they are computed anew.
    stale: bool = False
    #: By place of the group: blocks from the first on that need no more saving.
    saved: list[int] = field(default_factory=list)
    #: By place of the group: which blocks the pool has (1), where that is not a prefix.
    present: list[bytes] = field(default_factory=list)

    def forget_saved(self) -> None:
        """What the pool has is not known (any more)."""
        self.saved = [0] * len(self.saved)
        self.present = [b""] * len(self.present)
