"""Another connector beside ours inside vLLM's MultiConnector: HMA-capable, with loads of its own between steps.

In real engines it never offers anything; in the made-up world a test sets `offers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA

MODULE = "tests.vllm.engine.neighbour"


@dataclass
class NeighbourLoad:
    request_id: str
    #: Block numbers of each group, and the tokens to fill: from `start` to `end`.
    table: tuple[list[int], ...]
    start: int
    end: int


@dataclass
class NeighbourMetadata(KVConnectorMetadata):
    loads: list[NeighbourLoad] = field(default_factory=list)


class NeighbourConnector(KVConnectorBase_V1, SupportsHMA):
    """Offers what `offers(request, local)` says, None for "ask again"."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.offers: Callable[[Any, int], int | None] = lambda request, local: 0
        self._local: dict[str, int] = {}
        self._loads: list[NeighbourLoad] = []

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        self._local[request.request_id] = num_computed_tokens
        offered = self.offers(request, num_computed_tokens)
        return offered, bool(offered)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            start = self._local[request.request_id]
            ids = blocks.get_block_ids()
            self._loads.append(NeighbourLoad(request.request_id, ids, start, start + num_external_tokens))

    def build_connector_meta(self, scheduler_output: Any) -> NeighbourMetadata:
        loads, self._loads = self._loads, []
        return NeighbourMetadata(loads)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...


def beside(ours: dict[str, Any], *, first: bool) -> dict[str, Any]:
    """`--kv-transfer-config` of a MultiConnector with our connector's configuration as its first or second child."""
    neighbour = {"kv_connector": "NeighbourConnector", "kv_role": "kv_both", "kv_connector_module_path": MODULE}
    children = [ours, neighbour] if first else [neighbour, ours]
    return {
        "kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": children},
    }  # fmt: skip
