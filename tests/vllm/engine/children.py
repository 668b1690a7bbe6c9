"""Our connector where it may have a neighbour: alone, or in one of two places inside vLLM's MultiConnector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector, MultiKVConnectorWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput

from pykvpool_connector.vllm.messages import StepOrders
from pykvpool_connector.vllm.metadata import StepMetadata
from tests.vllm.engine.neighbour import NeighbourConnector, NeighbourLoad


class Children:
    """What the scheduler's connector consists of.

    Args:
        connector: the scheduler's.
        offers: what the neighbour has of a request, where there is one.
    """

    def __init__(self, connector: Any, offers: Callable[[Any, int], int | None]) -> None:
        self.ours = connector
        #: Our place among two; None: we are alone.
        self._place: int | None = None
        if isinstance(connector, MultiConnector):
            children = connector.sub_connectors
            self._place = int(isinstance(children[0], NeighbourConnector))
            children[1 - self._place].offers = offers
            self.ours = children[self._place]

    def orders_in(self, metadata: Any) -> tuple[StepOrders, list[NeighbourLoad]]:
        neighbours: list[NeighbourLoad] = []
        if self._place is not None:
            neighbours = metadata.metadata[1 - self._place].loads
            metadata = metadata.metadata[self._place]
        assert isinstance(metadata, StepMetadata)
        return metadata.orders, neighbours

    def wrapped(self, output: KVConnectorOutput) -> KVConnectorOutput:
        """A rank's output, as MultiConnector's worker would hand it over."""
        ours = output.kv_connector_worker_meta
        if self._place is not None and ours is not None:
            children = (ours, None) if self._place == 0 else (None, ours)
            output.kv_connector_worker_meta = MultiKVConnectorWorkerMetadata(children)
        return output
