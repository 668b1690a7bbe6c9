"""`PyKVPoolStoreConnector`: vLLM's hooks, handed on.

vLLM makes one of these in the scheduler's process and one in every worker, tells it which it is, and calls the hooks of
that side. What is decided stands in `scheduler/`, what is moved in `worker/`; this only translates.

Of vLLM's promises to connectors this relies on few: blocks are this engine's while a request holds them or a save has
referenced them; a load belongs to the pool until every rank has reported it; an order reaches every rank in the step
for which it was made.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from pykvpool.errors import invariant
from pykvpool.runtime import BootClock
from pykvpool_connector.vllm import placement
from pykvpool_connector.vllm.engine_blocks import VllmBlocks
from pykvpool_connector.vllm.events import VllmEvents
from pykvpool_connector.vllm.identity import identity_of, rank_of
from pykvpool_connector.vllm.logs import join_log
from pykvpool_connector.vllm.metadata import RankMetadata, StepMetadata
from pykvpool_connector.vllm.scheduler.policy import Policy
from pykvpool_connector.vllm.scheduler.side import SchedulerSide
from pykvpool_connector.vllm.settings import Settings, check_options, settings_of
from pykvpool_connector.vllm.stats import PyKVPoolPromMetrics, PyKVPoolStats
from pykvpool_connector.vllm.worker.device import cuda_order
from pykvpool_connector.vllm.worker.side import WorkerSide
from pykvpool_connector.vllm.worker.tensors import read_tensors

log = logging.getLogger(__name__)


class PyKVPoolStoreConnector(KVConnectorBase_V1, SupportsHMA):
    """The pool as a store behind the engine's own cache."""

    #: The pool spans hosts and may have tiers: it does not say which memory a hit came from.
    _cache_hit_source = CacheHitSource.EXTERNAL_UNSPECIFIED

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        join_log()
        transfer = vllm_config.kv_transfer_config
        self._settings: Settings = settings_of(transfer)
        self._identity = identity_of(
            vllm_config,
            kv_cache_config,
            namespace=self._settings.namespace,
            model_id=self._settings.options.model_id,
        )
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role is KVConnectorRole.SCHEDULER:
            for warning in self._settings.config.warnings:
                log.warning("%s", warning)
            if transfer.kv_load_failure_policy != "recompute":
                log.warning(
                    "kv_load_failure_policy is %r: a load that fails ends its request with an error. Set it to "
                    "'recompute', and what could not be loaded is computed",
                    transfer.kv_load_failure_policy,
                )
            self._scheduler = self._scheduler_side()

    # -- both sides --------------------------------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """No: a save that is dropped is a later miss, nothing worse."""
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """The layout that was asked for; None: any will do."""
        return settings_of(vllm_config.kv_transfer_config).options.kv_layout or None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """No. vLLM asks when it puts its configuration together, long before it loads weights and makes a connector:
        wrong options are refused here already (it does not ask where there are no full CUDA graphs)."""
        check_options(extra_config)
        return False

    def get_kv_connector_stats(self) -> PyKVPoolStats | None:
        """What this side has counted since the last call."""
        side = self._worker or self._scheduler
        tally = side.take_tally() if side is not None else None
        return PyKVPoolStats(tally.to_dict()) if tally is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> PyKVPoolStats:
        return PyKVPoolStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> PyKVPoolPromMetrics:
        return PyKVPoolPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Let saves finish for a bounded time; then nothing of the engine's memory is touched any more."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()

    # -- the scheduler's side ----------------------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._side.bind(VllmBlocks(kv_cache_manager))

    def on_new_request(self, request: Any) -> None:
        self._side.new(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._side.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._side.allocated(request, blocks.blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return StepMetadata(self._side.build(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        reported = connector_output.kv_connector_worker_meta
        self._side.reported(
            reported.report if isinstance(reported, RankMetadata) else None,
            connector_output.finished_recving or (),
            connector_output.failed_recving or (),
        )

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The engine may free the blocks: what is still being saved has references of its own."""
        self._side.finished(request)
        return False, None

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.pending()

    def take_events(self) -> Iterable[Any]:
        return self._side.take_events()

    def reset_cache(self) -> bool | None:
        return self._side.reset()

    # -- the worker's side -------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The engine's memory is there: from now on blocks can move."""
        tensors = read_tensors(self._kv_cache_config, kv_caches, self._identity)
        port = placement.worker_port(self._settings, self._vllm_config, tensors.device)
        rank = rank_of(self._vllm_config.parallel_config)
        order = cuda_order if tensors.device == "cuda" else None
        self._worker = WorkerSide(self._identity, self._settings, rank, port, tensors, order)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.start_loads(self._orders())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads end between steps: no layer waits."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are saved whole, after their step."""

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.start_saves(self._orders())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if self._worker is None:
            return KVConnectorTransferResults()
        self._worker.poll()
        ended = self._worker.take_transfers()
        return KVConnectorTransferResults(finished_recving=ended.received, failed_recving=ended.failed)

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        report = self._worker.take_report() if self._worker is not None else None
        return RankMetadata(report) if report is not None else None

    # -- inside ------------------------------------------------------------------------------------------------------

    @property
    def _side(self) -> SchedulerSide:
        side = self._scheduler
        invariant(side is not None, "this hook belongs to the scheduler's side")
        assert side is not None
        return side

    def _orders(self) -> Any:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        return metadata.orders

    def _scheduler_side(self) -> SchedulerSide:
        options = self._settings.options
        policy = Policy(
            loads=self._settings.loads,
            saves=self._settings.saves,
            save_decode_cache=options.save_decode_cache,
            min_load_tokens=options.min_load_tokens,
            lookup_timeout_ms=options.lookup_timeout_ms,
            save_timeout_ms=options.save_timeout_ms,
            max_pinned_ratio=options.max_pinned_ratio,
            reset_timeout_s=options.reset_timeout_s,
            drain_s=options.drain_s,
        )
        listens = self._vllm_config.kv_events_config
        return SchedulerSide(
            self._identity,
            policy,
            placement.scheduler_port(self._settings, self._vllm_config),
            BootClock().now_ms,
            draft_groups=draft_groups(self._vllm_config, self._kv_cache_config),
            events=VllmEvents(self._kv_cache_config) if listens and listens.enable_kv_cache_events else None,
        )


def draft_groups(vllm_config: Any, kv_cache_config: Any) -> frozenset[int]:
    """Cache groups in which a block's last token depends on the token after it (see `Hits`)."""
    speculative = vllm_config.speculative_config
    if speculative is None or not speculative.use_eagle():
        return frozenset()
    groups = kv_cache_config.kv_cache_groups
    marked = frozenset(number for number, group in enumerate(groups) if group.is_eagle_group)
    return marked or frozenset(range(len(groups)))
