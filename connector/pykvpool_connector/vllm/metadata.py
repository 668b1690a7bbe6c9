"""vLLM's two envelopes: what goes from the scheduler to the workers with each step, and back."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from pykvpool_connector.vllm.messages import RankReport, StepOrders


@dataclass(frozen=True, slots=True)
class StepMetadata(KVConnectorMetadata):
    orders: StepOrders


@dataclass(frozen=True, slots=True)
class RankMetadata(KVConnectorWorkerMetadata):
    """One rank's report, or that of several ranks once `aggregate` has put them together."""

    report: RankReport

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, RankMetadata)
        self.report.add(other.report)
        return self
